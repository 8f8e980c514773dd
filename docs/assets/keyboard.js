// What scrolls sideways must be reachable without a mouse, and a dialog needs a name.
function reachable() {
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
