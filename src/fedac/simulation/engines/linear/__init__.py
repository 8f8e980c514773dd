# SPDX-License-Identifier: Apache-2.0
"""The fast engine for linear models, from `simulate` to the kernel. Names are files of this folder.

**Lanes.** A lane is one run: an algorithm with its hyperparameters, so with one step size. All
lanes of a problem draw the same rows, so they advance together, and a row of data is read once for
all of them. Lanes with the same number of sequences (w_ag and w are two) form a group (`rounds`),
whose states are one array of shape (coordinates, sequences, lanes). A kernel takes up to 16 lanes
of a group at a time: S sequences of V lanes, S*V numbers per coordinate side by side in the
processor's vector registers (`kernels/simd` has the vector type, and the templates that give a
kernel its width).

**Clients.** `kernels/interface.Draws` holds the participants of a round and their draws. Rows are
sorted by client, so that a client's rows lie between two bounds. Absent clients cost nothing.
Below, a worker is a participating client.

**Rounds.** `engine._rounds` walks through the schedule. A round of one step, and every round of a
minibatch algorithm, is one gradient at the averaged state, over the histogram of drawn rows
(`rounds.MinibatchRounds`); with few draws, all rounds up to the next record are one call of a
kernel. Any other round is run by M workers (`rounds.LocalRounds`). After it,
diverged lanes leave their group. A pass over the data computes the losses of all lanes at several
recorded steps (`model`; step by step if there are callbacks). If a step size decays, the group gets
new hyperparameters and tables in every round.

**The affine form.** Kernels know nothing about algorithms. An algorithm's `query` and `update` are
called on unit vectors, which gives c, A and b with ``w_md = c.S`` and ``S' = A S + b g``
(`coefficients`). In a linear model g is a number times a row plus l2 w_md, and the l2 term goes
into A. A would touch every coordinate at every step. So workers keep ``Y_t = A^-t S_t`` instead: Y
changes only along the drawn row, and a step costs as much as the row has nonzeros. The tables of a
round hold ``c' A^t`` and ``A^-(t+1) b`` for every step t.

**Folding.** When A^t becomes so ill-conditioned that rounding would show, Y is folded: multiplied
by A^t once, over all coordinates, and t starts again at 0. The tables say at which steps.

**Workers and strands.** Workers are streamed: each starts at the same state, takes its steps, and
adds its move to a total, so memory does not grow with M (`workers`; `dense` for dense data). They
are cut into strands, fixed groups with separate totals. Threads share the strands, and totals are
added in order: results do not depend on the number of threads, to the last bit.

**Shared rows.** With more draws in a round than rows in the data, the products of all rows with
the start are computed once, and workers note how much of each row they added instead of moving a
total.

**Dense rows** with many lanes go through matrix products: within a block of steps a worker needs
its rows times the start and times each other (`dense`). With few lanes, or if every client starts
from its own state, these products do not pay, and dense rows go the same way as sparse ones.

**Classes.** Softmax regression has C coordinates of the state per column of the data, side by side.
Everything that is linear in the state treats them like any others. A row has C margins and adds C
steps (`kernels/classes`); the type of the loss chooses that code at compile time. On dense rows of
few columns the kernel takes its steps in blocks, by small matrix products of its own.

**Clients with memory.** A method may have its own `enter` and `leave`, and clients may keep vectors
between their rounds (`fedac.algorithms.algorithm`). Then every client starts from its own
state, a combination of the broadcast and its memory, and its message is a combination too
(`client_rounds`; the kernel is `kernels/client_rounds.run_clients`). The server's rule is called
once a round, by the algorithm, on the exact states of all lanes (`rounds.LaneGroup`).

**Timelines.** With deadlines and absent clients, the members of a round come from the timeline, and
all else stays as it is. In asynchronous rounds they started from different versions. The versions
that clients still work from are rows of one array (`history`), and the kernels get, for every
member, its row, its own numbers of random draws, and how much its move counts. Lanes of plain
methods sum up moves as in rounds (`history.StaleRounds`), all others take the way of clients with
memory. A client may be in a server step twice: its works are neighbours in one strand.

**The kernel** is `kernels/steps.run_workers`; `kernels/interface` has its arguments. For every
worker of its strands `draw_rows` lists the rows it draws (by `fedac.federation.sampling`, a pure
function of seed, worker and step). Then, for each step: the margin of the row, the derivative of
the loss (`kernels/losses`), and the row added to Y. A batch first takes all its derivatives, then
adds its rows; the type of `Scratch.slopes` chooses between the two loops, so that single rows pay
nothing for it. A worker's move is multiplied by its weight. `finish_round` turns the total into the
averaged state.

**Many nodes.** With ``on="ray"`` the strands of a round are shared among actors on the nodes of a
cluster, not among threads here (`engines/ray`). All else stays with the driver, which adds up the
totals of all strands in order. So results do not depend on the number of nodes either. Actors keep
the memories of clients; a client that moves to another actor takes its memory along.

**Warm-up.** Kernels are compiled when first called and kept on disk (`kernels/interface`). Before
the run, one worker takes a round of each length through the same code path; the clock starts after
that.
"""
