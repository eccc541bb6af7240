/* The versions that were published beside this one, read from versions.json in the folder above the version's own.
   Without that file, as in a local build, the list has the version that is shown and nothing else. */
window.addEventListener("DOMContentLoaded", async () => {
  const list = document.getElementById("versions");
  if (!list) return;
  const above = new URL(`${list.dataset.root || "./"}../`, location.href); // content_root is "./" or "../"
  let versions;
  try {
    const answer = await fetch(new URL("versions.json", above));
    if (!answer.ok) return;
    versions = await answer.json();
  } catch {
    return;
  }
  if (!Array.isArray(versions) || !versions.length) return;
  const { current, page } = list.dataset;
  const of = (version, file) => new URL(`${version}/${file}`, above).href;
  const names = versions.includes(current) ? versions : [current, ...versions];
  list.replaceChildren(...names.map((name) => new Option(name, name, name === current, name === current)));
  list.disabled = false;
  list.addEventListener("change", async () => {
    const same = await fetch(of(list.value, page), { method: "HEAD" }).catch(() => ({ ok: false }));
    location.href = of(list.value, same.ok ? page : "index.html");
  });
  const note = document.getElementById("outdated");
  if (versions.includes(current) && versions[0] !== current) {
    const link = note.querySelector("a");
    [link.textContent, link.href] = [versions[0], of(versions[0], "index.html")];
    note.hidden = false;
  }
});
