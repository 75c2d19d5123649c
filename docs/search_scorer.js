// Puts guides and the glossary before pages of the reference and of examples, unless a name of the API
// is what was looked for.
var Scorer = {
  score: ([docname, , , , score]) => {
    if (docname === "glossary") return score + 12;
    if (docname.startsWith("guides/")) return score + 18;
    return docname.startsWith("examples/") ? score + 4 : score;
  },
  objNameMatch: 26,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
