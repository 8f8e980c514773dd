// The table of all rows. Costs and suboptimalities are [middle, low, high].

const short = (value) => (value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3))));

function withBrackets([middle, low, high]) {
  return low === high ? short(middle) : `${short(middle)} (${short(low)} to ${short(high)})`;
}

function drawRows({ rows, target, budget, measure, repeats }) {
  const notReached = (row) => `not reached (${row.seeds_reached} of ${repeats} seeds)`;
  const rounds = (value, row) => (value === Infinity ? notReached(row) : withBrackets(value));
  const cost = (value) => (value === Infinity ? "\u2013" : withBrackets(value));
  const orDiverged = (value) => (value === Infinity ? "diverged" : withBrackets(value));
  const atEdge = (value, edge) => short(value) + (edge && ` (${edge} tried)`);
  const share = (value) => value.toFixed(4);
  const columns = [
    ["method", "method"],
    ["wire", "wire"],
    ["K", "K"],
    ["rounds", "rounds", rounds],
    ["megabytes", "MB", cost],
    ["seconds", "seconds", cost],
    ["suboptimality", `${measure} within ${budget}`, orDiverged],
    ["test_accuracy", "test accuracy", share],
    ["test_auc", "test AUC", share],
    ["test_log_loss", "test log loss", share],
    ["test_r2", "test R2", share],
    ["test_mae", "test MAE", short],
    ["test_top_5", "test top-5", share],
    ["test_perplexity", "test perplexity", short],
    ["client_loss_spread", "client loss spread", share],
    ["client_loss_worst", "worst-client loss", share],
    ["ratio", "ratio to the best", cost],
    ["eta", "step size", (eta, { edge }) => atEdge(eta, edge)],
    ["server_step", "server step", (step, { server_edge }) => atEdge(step, server_edge)],
    ["momentum", "momentum", short],
    ["mu", "mu", short],
    ["smallest", "smallest record", orDiverged],
  ].filter(([key]) => target !== null || !["rounds", "megabytes", "seconds"].includes(key));
  const order = { key: target === null ? "suboptimality" : "seconds", sign: 1 };
  sortable($("rows"), columns, order)(rows.map(lastIfMissing));
}

// Targets that were not reached sort last.
function lastIfMissing(row) {
  const names = ["rounds", "megabytes", "seconds", "suboptimality", "smallest", "ratio"];
  const missing = names.filter((name) => row[name][0] === null);
  return { ...row, ...Object.fromEntries(missing.map((name) => [name, Infinity])) };
}
