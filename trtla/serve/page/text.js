// Text as it comes, with code in monospace: between fences and between backticks. All of it stays text nodes, in order.

const OPENS = /^ {0,3}(`{3,}|~{3,})([^`\n]*)\n?$/;
const LONG = 2000; // of a line: code in it is not looked for any more
const INLINE = /(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)/g;

export function el(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

const span = (className, ...children) => el("span", { className }, ...children);
const code = (className, ...children) => el("code", { className }, ...children);

export class Text {
  #node;
  #piece; // a node of a piece's text and source
  #block = null; // the code that lines are in, and the fence it began with
  #fence = "";
  #line = []; // the pieces of the last line
  #whole = ""; // their text
  #wasFence = false; // whether it was shown as a fence
  #place; // where it stands

  constructor(node, piece) {
    this.#node = node;
    this.#piece = piece;
    this.#begin();
  }

  add(text, source) {
    for (const part of text.match(/[^\n]*\n|[^\n]+/g) ?? []) {
      this.#line.push({ text: part, source });
      this.#whole += part;
      this.#show(part);
      if (part.endsWith("\n")) this.#end();
    }
  }

  #begin() {
    this.#line = [];
    this.#whole = "";
    this.#wasFence = false;
    this.#place = span("");
    (this.#block ?? this.#node).append(this.#place);
  }

  #closes(line) {
    const [, fence, rest] = line.match(OPENS) ?? [];
    return fence?.[0] === this.#fence[0] && fence.length >= this.#fence.length && !rest.trim();
  }

  // What follows the last sign is text, whatever the line was before: it is appended.
  #show(part) {
    const line = this.#whole;
    const isFence = this.#block ? this.#closes(line) : OPENS.test(line);
    const goesOn = !isFence && !this.#wasFence && !/[`~]/.test(part);
    this.#wasFence = isFence;
    if (goesOn || line.length > LONG) this.#place.append(this.#piece(this.#line.at(-1)));
    else if (isFence) this.#place.replaceChildren(...this.#fenceParts(line));
    else this.#place.replaceChildren(...(this.#block ? this.#pieces(0, line.length) : this.#parts(line)));
  }

  #end() {
    const line = this.#whole;
    if (this.#block && this.#closes(line)) {
      this.#block = null;
    } else if (!this.#block && OPENS.test(line)) {
      this.#fence = line.match(OPENS)[1];
      this.#block = code("block", this.#place);
      this.#node.append(this.#block);
    }
    this.#begin();
  }

  // A fence: its language is shown, where it has one.
  #fenceParts(line) {
    const [, fence, language] = line.match(OPENS);
    const start = line.indexOf(fence) + fence.length;
    const signs = span("signs", ...this.#pieces(0, start));
    if (!language.trim()) return [span("signs", ...this.#pieces(0, line.length))];
    return [signs, span("language", ...this.#pieces(start, line.length))];
  }

  #parts(line) {
    const parts = [];
    let at = 0;
    for (const { index, 0: all, 1: signs } of line.matchAll(INLINE)) {
      const [start, stop] = [index + signs.length, index + all.length - signs.length];
      const inside = [span("signs", ...this.#pieces(index, start)), ...this.#pieces(start, stop)];
      const last = span("signs", ...this.#pieces(stop, index + all.length));
      parts.push(...this.#pieces(at, index), code("", ...inside, last));
      at = index + all.length;
    }
    return [...parts, ...this.#pieces(at, line.length)];
  }

  // What of the line's pieces lies between two places.
  #pieces(start, stop) {
    const found = [];
    let at = 0;
    for (const { text, source } of this.#line) {
      const part = text.slice(Math.max(start - at, 0), Math.max(stop - at, 0));
      if (part) found.push(this.#piece({ text: part, source }));
      at += text.length;
    }
    return found;
  }
}
