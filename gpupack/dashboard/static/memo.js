// A component that is drawn again only where one of its properties is another value.

import { Component } from "./vendor/htm-preact.module.js";

export function memo(draw) {
  return class extends Component {
    shouldComponentUpdate(next) {
      const names = new Set([...Object.keys(this.props), ...Object.keys(next)]);
      for (const name of names) if (name !== "children" && this.props[name] !== next[name]) return true;
      return false;
    }

    render(props) {
      return draw(props);
    }
  };
}
