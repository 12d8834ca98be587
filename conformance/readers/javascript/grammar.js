"use strict";
// What the .ksy says of types and fields: the compiled classes have values, but no list of them.

const WIDTH = /^[usf]([1248])$/;

/** `row(ofs_heap)` without its arguments. */
function typeName(text) {
  return text.split("(")[0];
}

/** section_count -> sectionCount, as the compiler writes it. */
function camel(id) {
  return id.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase());
}

class Grammar {
  constructor(ksy) {
    this.types = ksy.types;
    this.enums = ksy.enums;
    this.parts = Object.fromEntries(Object.entries(ksy.instances).map(([id, part]) => [id, part.type]));
    const kinds = Object.fromEntries(
      Object.entries(ksy.enums.section_kind).map(([kind, item]) => [item.id, Number(kind)]),
    );
    const { cases } = this.types[this.parts.sections].instances.body.type;
    this.bodies = new Map(Object.entries(cases).map(([name, type]) => [kinds[name.split("::")[1]], typeName(type)]));
  }

  fields(type) {
    return this.types[type].seq;
  }

  /** Heap references of a row: Map of the field with the offset to what it refers to. */
  refs(type) {
    const found = new Map();
    for (const [id, instance] of Object.entries(this.types[type].instances || {})) {
      const match = /^ofs_heap \+ (\w+)_offset\b/.exec(String(instance.pos));
      if (match) found.set(`${match[1]}_offset`, id);
    }
    return found;
  }

  /** Tables of rows in a section's body: [instance, type of a row]. */
  tables(type) {
    return Object.entries(this.types[type].instances || {})
      .filter(([, instance]) => "repeat" in instance && "size" in instance)
      .map(([id, instance]) => [id, typeName(instance.type)]);
  }

  /** The type of the header of a section's body: the body itself, where only a blob follows; undefined without one. */
  header(type) {
    const fields = this.types[type].seq;
    const told = fields?.find((item) => item.id === "header");
    return told ? typeName(told.type) : fields && type;
  }

  /** Bytes of a field; undefined where that depends on the file. */
  width(item) {
    const size = typeof item.size === "number" ? item.size : Number(WIDTH.exec(item.type)?.[1] ?? NaN);
    const count = item.repeat ? item["repeat-expr"] : 1;
    return Number.isFinite(size * count) ? size * count : undefined;
  }

  /** Bytes of a record. */
  size(type) {
    return this.fields(type).reduce((sum, item) => sum + this.width(item), 0);
  }

  /** What a path like /types/gpack_header_v1/seq/2 means: {type, item}. */
  field(path) {
    const match = /^\/types\/(\w+)\/seq\/(\d+)/.exec(path || "");
    return match && { type: match[1], item: this.types[match[1]].seq[Number(match[2])] };
  }
}

module.exports = { Grammar, camel };
