// The theme leaves the sidebar where it was on the page before. There, the entry of this page may be out of sight.
addEventListener("load", () => {
  const sidebar = document.querySelector("#pst-primary-sidebar");
  const entry = [...(sidebar?.querySelectorAll(".bd-docs-nav .active > a") ?? [])].at(-1)?.getBoundingClientRect();
  if (entry && (entry.top < 0 || entry.bottom > innerHeight)) {
    sidebar.scrollTop += entry.top - innerHeight / 4;
  }
});
