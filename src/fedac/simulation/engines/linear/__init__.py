"""The fast engine, from `simulate` to the kernel.

`simulate` checks its input, makes a `Problem` of it and asks `engines.py` for an engine. Here is
what the fast one does with the problem. Each name below is a file of this folder.

**Lanes and packs.** A lane is one run: an algorithm with its hyperparameters, so with one step
size. All lanes of a problem draw the same rows, so they advance together, and a row of data is
read once for all of them. Lanes with equally many sequences (w_ag and w are two) form a pack
(`pack`), whose states are one array of shape (coordinates, sequences, lanes). A kernel takes up
to 16 lanes of a pack at a time: S sequences of V lanes, S*V numbers per coordinate side by side
in the processor's vector registers (`simd` has the vector type, and the templates that give a
kernel its width).

**Clients.** `members` says who takes part in a round and what each of them draws, for the kernels.
The rows of the data are reordered by client, so that a client's rows lie between two bounds. Those
who stay away cost nothing. What is called a worker below is a client that takes part.

**Rounds.** `engine` walks through the schedule; `_rounds` there is where a round starts. A round
of one step, and every round of a minibatch algorithm, is one gradient at the averaged state, over
the histogram of drawn rows (`batch`). Any other round is run by M workers (`local`). After it,
diverged lanes leave their pack, and at the steps on record the losses of all lanes are computed
in one pass over the data (`evaluate`). Where a step size falls, the pack gets the hyperparameters
of the round, and tables of its own.

**The affine form.** Kernels know no algorithm. An algorithm's `query` and `update` are called on
unit vectors; that gives c, A and b with ``w_md = c.S`` and ``S' = A S + b g`` (`affine`). In a
linear model g is a number times a row plus l2 w_md, and the l2 term goes into A. A would touch
every coordinate at every step. So workers keep ``Y_t = A^-t S_t`` instead: Y changes only along
the drawn row, and a step costs as much as the row has nonzeros. The tables of a round hold ``c'
A^t`` and ``A^-(t+1) b`` for every step t.

**Folding.** When A^t becomes so ill-conditioned that rounding would show, Y is folded: multiplied
by A^t once, over all coordinates, and t starts again at 0. The tables say at which steps.

**Workers and strands.** Workers are streamed: one after the other starts at the same state, takes
its steps, and adds how far it moved to a total, so memory does not grow with M (`workers`;
`sparse` and `dense` for the two kinds of data). The workers are cut into strands, fixed groups
with a total of their own. Threads share the strands (`threads`), and totals are added in order:
results do not depend on the number of threads, to the last bit.

**Clients with memory.** A method may let clients enter and leave a round in their own way, and keep
vectors between their rounds (`fedac.algorithms.algorithm`). Then every client starts from a state
of
its own, a combination of what was broadcast and what it remembers, and its message is a combination
too (`boundary`, `client_forms`; the kernel is `boundary_kernels.run_clients`). The memories of all
clients are one array, float32 unless the precision is double (`client_memory`). The server's rule
is called once a round, by the record, on the exact states of all lanes (`pack`).

**Shared rows.** With more draws in a round than rows in the data, the products of all rows with
the start are computed once, and workers note how much of each row they added instead of moving a
total (`workers`).

**Dense rows** go through matrix products: within a block of steps a worker needs its rows times
the start and times each other (`dense`).

**The kernel** is `kernels.run_workers`. Its arguments are in `records`. For every worker of its
strands `draw_rows` lists the rows it draws (by `fedac.federation.sampling`, a pure function of
seed, worker
and step). Then, for each step: the margin of the row, the derivative of the loss (`losses`, from
the formulas in `fedac.objectives.loss_functions`), and the row added to Y. A batch first takes all
its
derivatives, then adds its rows; the type of `Scratch.slopes` chooses between the two loops, so that
single rows pay nothing for it. A worker's move counts as much as the worker does.
`kernels.finish_round` turns the total into the averaged state.

**Many nodes.** With ``on="ray"`` the strands of a round are shared among actors on the nodes of a
cluster, not among threads here (`crew` is the driver's side, `actor` the other one, `job` what they
are told). All else stays with the driver, which adds up the totals of all strands in order. So
results do not depend on the number of nodes either. An actor keeps what the clients of its strands
remember; a client that falls to another actor takes its memory along (`owners`).

**Warm-up.** Kernels are compiled when first called (`compiling` keeps them on disk). Before the
run, one worker takes a round of each length through the same code path as the real run; the clock
starts after that.
"""
