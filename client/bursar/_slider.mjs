// A slider over previews that Python asked for: price, verdict and expected errors of each spend. It asks for nothing.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320, HEIGHT = 120, EDGE = 10;

function make(parent, name, attributes = {}, namespace = null) {
  const element = namespace ? document.createElementNS(namespace, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return parent.appendChild(element);
}

// Places on logarithmic axes, the least at one end and the largest at the other.
function places(values, length) {
  const logs = values.map(Math.log), least = Math.min(...logs), range = Math.max(...logs) - least || 1;
  return logs.map((one) => EDGE + ((one - least) / range) * (length - 2 * EDGE));
}

function render({ model, el }) {
  const points = model.get("points");
  const box = make(el, "div", { style: "font-family: system-ui, sans-serif; max-width: 36rem" });
  const label = make(box, "label", { style: "display: block" });
  label.textContent = "spend ";
  const slider = make(label, "input", {
    type: "range", min: 0, max: points.length - 1, step: 1, value: model.get("chosen"), style: "width: 20rem",
  });
  const said = make(box, "output", { "aria-live": "polite", style: "display: block; white-space: pre-line" });
  const drawn = points.filter((one) => one.error > 0);
  let mark = null, xs = [], ys = [];
  if (drawn.length === points.length) {
    const picture = make(box, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, role: "img",
      "aria-label": "expected error by spend, both logarithmic" }, SVG);
    xs = places(points.map((one) => one.percent), WIDTH);
    ys = places(points.map((one) => one.error), HEIGHT).map((y) => HEIGHT - y);
    const line = xs.map((x, place) => `${x},${ys[place]}`).join(" ");
    make(picture, "polyline", { points: line, fill: "none", stroke: "#1b6ca8", "stroke-width": 2 }, SVG);
    mark = make(picture, "circle", { r: 6, fill: "#c8553d" }, SVG);
  }
  function show() {
    const place = Number(slider.value), point = points[place];
    said.textContent = [point.title, ...point.lines].join("\n");
    slider.setAttribute("aria-valuetext", point.title);
    mark?.setAttribute("cx", xs[place]);
    mark?.setAttribute("cy", ys[place]);
  }
  slider.addEventListener("input", () => {
    show();
    model.set("chosen", Number(slider.value));
    model.save_changes();
  });
  show();
}

export default { render };
