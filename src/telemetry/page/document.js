// The document. Every string of a report is hostile: `patch` alone writes descriptions of elements (`h`) to the document, as text and
// values of attributes, never as markup. It writes differences only, so views can run every second.

export const LONGEST = 400; // characters shown of a string

export const $ = (id) => document.getElementById(id);

// A class, so that no object of a report passes for a described element.
class Described {
  constructor(tag, { key = null, style = {}, ...attributes }, children) {
    Object.assign(this, { tag, key, style, attributes, children: children.flat(4).filter((child) => child || child === 0) });
  }
}

// Describes an element. Children that are null, false or "" are left out; a `key` keeps an element with its subject.
export function h(tag, attributes, ...children) {
  return new Described(tag, attributes, children);
}

// Shows what would hide or turn text around: control, format and private characters, and halves of pairs.
export function plain(value) {
  const text = String(value);
  const shown = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
  const code = (character) => `\\u{${character.codePointAt(0).toString(16)}}`;
  return shown.replace(/\s+/g, " ").replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}]/gu, code);
}

// Makes these the children of an element. Writes only what differs.
function patch(parent, children) {
  const keyed = new Map();
  const others = [];
  for (const node of parent.childNodes) node.key == null ? others.push(node) : keyed.set(node.key, node);
  const wanted = children.map((child) => {
    if (!(child instanceof Described)) return text(others[0]?.nodeType === Node.TEXT_NODE ? others.shift() : new Text(), plain(child));
    let node = child.key == null ? others[0] : keyed.get(child.key);
    if (node?.localName !== child.tag) {
      const space = child.tag === "svg" ? "http://www.w3.org/2000/svg" : parent.namespaceURI;
      node = document.createElementNS(space, child.tag);
      node.key = child.key;
    } else if (child.key == null) others.shift();
    write(node, child);
    return node;
  });
  const kept = new Set(wanted);
  for (const node of [...parent.childNodes]) if (!kept.has(node)) node.remove();
  let place = parent.firstChild;
  for (const node of wanted) {
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
}

function text(node, data) {
  if (node.data !== data) node.data = data;
  return node;
}

function write(node, { attributes, style, children }) {
  const before = node.written ?? {};
  for (const name of Object.keys({ ...before, ...attributes })) {
    const value = attributes[name];
    if (value === before[name]) continue;
    if (value == null || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : name === "d" ? value : plain(value)); // paths are made of numbers
  }
  node.written = attributes;
  for (const [name, value] of Object.entries(style)) {
    if (node.style.getPropertyValue(name) !== String(value)) node.style.setProperty(name, value);
  }
  patch(node, children);
}

// Fills an element that index.html has.
export function fill(element, ...children) {
  patch(element, h("", {}, children).children);
}

export function show(id, shown) {
  $(id).toggleAttribute("hidden", !shown);
}

export function mark(element, name, value) {
  if (element.dataset[name] !== String(value)) element.dataset[name] = value;
}
