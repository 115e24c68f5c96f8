// The search lists guides before notebooks, notebooks before tables of results, and pages for contributors last.
// Sphinx has no way to change one of these numbers alone; all but `score` are its own.
const ORDER = [/^docs\/(?!design|changing|times)/, /^notebooks\/(?!02_)/, /^(docs\/times|benchmarks)\//];
var Scorer = {
  score: ([page, , , , score]) => {
    const place = ORDER.findIndex((pages) => pages.test(page));
    return score - (place < 0 ? ORDER.length : place) * 4;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
