// What two answers to one question say: whether the texts are the same, and which came faster.
import { el } from "./text.js";

export const PLAIN = [1, 1, 0];
export const same = (one, other) => String(one) === String(other);
export const choiceName = (choice) => (same(choice, PLAIN) ? "plain" : String(choice));

export function showVerdict(place, first, run) {
  const whole = first.done && run.done;
  const length = whole ? Infinity : Math.min(first.text.length, run.text.length);
  const at = difference(first.text.slice(0, length), run.text.slice(0, length));
  const lines = at < 0 ? [agreement(whole, Math.min(length, run.text.length))] : disagreement(first, run, at);
  if (first.metrics?.tokens_per_s && run.metrics?.tokens_per_s) lines.push(speeds(first, run));
  place.replaceChildren(el("div", { className: at < 0 ? "verdict" : "verdict differs" }, ...lines));
}

function difference(one, other) {
  if (one === other) return -1;
  let at = 0;
  while (at < one.length && one[at] === other[at]) at += 1;
  return at;
}

function agreement(whole, count) {
  const text = whole ? `✓ The text is the same, all ${count} characters.`
    : `✓ The text is the same as far as both go, ${count} characters.`;
  return el("p", {}, el("b", { textContent: text }));
}

function disagreement(first, run, at) {
  const near = ({ choice, text }) => [`${choiceName(choice)}: `, el("q", { textContent: text.slice(Math.max(at - 20, 0), at + 20) })];
  const text = `✗ The texts differ from character ${at + 1} on.`;
  return [el("p", {}, el("b", { textContent: text })), el("p", {}, ...near(first), "; ", ...near(run))];
}

function speeds(first, run) {
  const [was, is] = [first.metrics, run.metrics];
  const change = (name, digits) => `${was[name].toFixed(digits)} → ${is[name].toFixed(digits)}`;
  const times = `${(is.tokens_per_s / was.tokens_per_s).toFixed(2)} times the speed`;
  return el("p", {}, `${choiceName(first.choice)} → ${choiceName(run.choice)}: `, el("b", { textContent: times }),
    ` (${change("tokens_per_s", 1)} tokens/s), ${change("tokens_per_step", 2)} tokens per step.`);
}
