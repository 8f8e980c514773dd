// A figure with many panels is made smaller to fit the page. A click, or Enter, shows it at its
// full size on this page; Escape, or another click, closes it. Without scripts its link opens the file.
const viewer = document.createElement("dialog");
viewer.className = "figure";
viewer.innerHTML =
  '<div tabindex="0" role="group"><img alt=""></div><button type="button">Close</button>';
const [frame, shown] = [viewer.querySelector("div"), viewer.querySelector("img")];

document.addEventListener("click", (event) => {
  const link = event.target.closest(".md-typeset a:has(> img)");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const picture = link.querySelector("img");
  shown.src = link.href;
  shown.alt = picture.alt;
  viewer.setAttribute("aria-label", picture.alt);
  frame.setAttribute("aria-label", "The figure; arrow keys scroll");
  viewer.showModal(); // closing it leads the keyboard back to the link
  frame.focus();
});
viewer.addEventListener("click", () => viewer.close());
document.querySelector(".md-container").append(viewer);
