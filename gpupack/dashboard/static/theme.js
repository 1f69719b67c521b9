// Before anything is painted: the theme that was chosen here, else the system's.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("gpupack-theme"); } catch { /* storage is closed to us */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
