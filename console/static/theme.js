// Before anything is drawn: the theme that was chosen, if one was.
"use strict";
try {
  const theme = localStorage.getItem("ottla-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden; the system's theme is used then.
}
