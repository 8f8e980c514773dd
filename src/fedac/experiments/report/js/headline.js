// "How few rounds?": rows that Python computed for every target, problem and number of workers.

const headlineColumns = (measure) => [
  ["algorithm", "algorithm"],
  ["text", "rounds"],
  ["published", "published"],
  ["paper", "paper\u2019s text"],
  ["megabytes", "MB per client", threeDigits],
  ["seconds", "seconds", threeDigits],
  ["K", "K"],
  ["step_size", "step size"],
  ["middle", measure, scientific],
];

function drawHeadline({ problems, targets, headlines, link, measure }) {
  function update() {
    const here = headlines.filter((row) => row.problem === $("headline-problem").value);
    const workers = increasing(here.map((row) => row.M));
    offer("headline-M", workers, workers.at(-1));
    const [target, M] = [Number($("target").value), Number($("headline-M").value)];
    const chosen = here.filter((row) => row.M === M && row.target === target);
    fillTable($("headline"), headlineColumns(measure), chosen);
  }

  $("link").textContent = link;
  offer("target", targets, problems[0].target);
  offerSeveral("headline-problem", namesOf(problems));
  // Each problem starts with its own target.
  $("headline-problem").addEventListener("change", ({ target: { value } }) => {
    $("target").value = problems.find(({ problem }) => problem === value).target;
  });
  $("headline").closest("section").addEventListener("change", update);
  update();
}
