// What the report uses of its two libraries, and nothing else: the rest is shaken off.
import {arrow, axisX, axisY, dot, gridX, link, plot, pointerY, pointer, ruleX, ruleY, text, tip} from "@observablehq/plot";
import highlighter from "highlight.js/lib/core";
import sql from "highlight.js/lib/languages/sql";

highlighter.registerLanguage("sql", sql);
globalThis.Plot = {arrow, axisX, axisY, dot, gridX, link, plot, pointer, pointerY, ruleX, ruleY, text, tip};
globalThis.hljs = highlighter;
