// Each view has a URL: #/view?key=value, so that it can be sent to others and the back button works.

import { useEffect, useState } from "./vendor/htm-preact.module.js";

export const VIEWS = ["cards", "pending", "fits", "trends", "queues"];

export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  return {
    view: VIEWS.includes(path) ? path : "cards",
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

export function href(view, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const text = new URLSearchParams(kept).toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

export function go(view, query, { replace = false } = {}) {
  const to = href(view, query);
  if (to === location.hash) return;
  if (replace) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = to;
  }
}

export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const update = () => setRoute(parse(location.hash));
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return route;
}
