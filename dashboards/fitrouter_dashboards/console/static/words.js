// Every English sentence of the views that use it; to translate the page is to replace this file.

const s = (n) => (n === 1 ? "" : "s");

export const W = {
  views: { now: "Now", decisions: "Decisions", people: "People", money: "Money", policy: "Policy", models: "Models", learning: "Learning" },
  unreachable: "The gateway does not answer. Is it running? The page goes on trying.",
  reading: "Reading the log …",
  unknown: "Not known yet.",
  show: "Show",
  stale: (why) => `Not up to date: ${why}`,
  begin: {
    question: "Any tips on changing jobs at forty?", copy: "Copy", copied: "Copied.", uncopied: (why) => `Not copied: ${why} Select the text instead.`,
    title: "No requests yet", none: "Nothing has been asked so far.", send: "Send one; it shows up here a few seconds later.",
  },
  decisions: {
    title: "Decisions", filters: "Filters", all: "all", norole: "no role", first: "First", orders: [["", "newest"], ["regressions", "regressions"]],
    role: "Role", model: "Model", mode: "Mode", outcome: "Outcome", rating: "Rating", id: "Id begins with",
    rated: [["", "all"], ["any", "rated"], ["low", "rated below 0.5"], ["high", "rated 0.5 or more"]],
    earlier: "earlier decisions", live: "live, newest first", worst: "of the latest 1,000",
    none: "No decisions", nofit: "No decision has all of these.", widen: "Widen the filters.", remove: "Remove the filters",
    nothing: "No decisions yet.", soon: "They show up a few seconds after the first request.",
    newest: "← Newest", more: "Earlier →", begin: "the log begins here", latest: "the worst of the latest 1,000",
    columns: ["Time", "Person", "Role and prompt", "Model", "Probability", "Rating", "Predicted", "Cost", "Latency", "Outcome"],
    gap: (model) => `Red: the rating, or 0 for no answer, less the rating that was expected of ${model ? `the default model ${model}` : "a middling answer"}.`,
    votes: (n) => `${n} votes; the latest counts`,
  },
  alone: {
    title: "Against one model for everybody",
    standard: "the default model", best: "the best single model", both: "the default and the best single model",
    about: "The best single model is that of the best mean rating in the whole log, had it answered everything.",
    none: "It is known once a model has 30 rated answers; fewer say nothing.",
    nobest: "The best single model is known once a model has 30 rated answers.",
    label: (model, mid, low, high) => `Ratings against ${model}: ${mid}, between ${low} and ${high}`,
    rating: ([low, mid, high], mean, ratings, more) => {
      const signs = (v) => (v > 0 ? "+" : v < 0 ? "−" : "") + Math.abs(v).toFixed(2), n = ratings.toLocaleString("en");
      const ends = low === null ? "too few people for an interval" : `95 % interval ${signs(low)} to ${signs(high)}`;
      const sure = low === null ? "" : low > 0 ? ": people are happier so." : high < 0 ? ": people would be happier with it." : more ? `: not clear yet, about ${more.toLocaleString("en")} more ratings tell.` : ": no difference that shows.";
      return `Rating ${(mean[1] + mid).toFixed(2)}, with it alone ${mean[1].toFixed(2)}; ${ends}, ${n} ratings${sure}`;
    },
    few: (own, more) => `Ratings: not known yet; it has ${own} of the 30 rated answers that it takes${more ? `, about ${more.toLocaleString("en")} more ratings at this pace` : ""}.`,
    nomoney: () => "Money: not known; it has no price, or fewer than 30 requests could have gone to it.",
    money: ({ usd, less, share, low, high, requests, unpriced }) => {
      const ends = low === null ? "" : ` (${[low, high].map((v) => Math.round(100 * (less ? v : -v))).sort((a, b) => a - b).join(" to ")} %)`;
      return `${usd} ${less ? "saved" : "more spent"}: ${share}${ends} ${less ? "less" : "more"} than it would have cost, on ${requests} requests${unpriced ? `; ${unpriced.toLocaleString("en")} of unknown cost are left out` : ""}.`;
    },
  },
  money: {
    title: "Spending", span: "Time span", spans: [["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"], ["all", "All"]],
    by: "By", groups: [["model", "By model"], ["role", "By role"], ["day", "By day"], ["person", "By person"]],
    group: { model: "Model", role: "Role", day: "Day (UTC)", person: "Person" },
    columns: ["Requests", "Fresh input", "Cached input", "Written to cache", "Output", "Reasoning", "Cost"],
    none: "Nothing spent", nothing: "No requests in this time.", longer: "Choose a longer time span, or send one.",
    spent: "Spent", each: (usd, unpriced) => `${usd} per request${unpriced ? " with a known price" : ""}`, input: "Tokens in", inputs: (fresh, cached, written) => `${fresh} fresh, ${cached} cached, ${written} written to a cache`,
    output: "Tokens out", outputs: (output, reasoning) => `${output} of answers, ${reasoning} of hidden reasoning`, unknown: "Answers of unknown cost",
    unpriced: "No price is known of ", once: "The prices were not known when they were asked.", priced: "The price of every model is known.",
    nomodel: "no model", norole: "no role", nobody: "nobody in particular", most: "The 60 with most money are shown.",
    whatif: "What if …", about: "Move a slider: a replay of the last 7 days says what that would do to ratings and costs, each with its 95 % interval. Nothing changes before you apply it.",
    sliders: { cost_weight: "Cost weight", floor: "Floor" }, apply: (value) => `Apply ${value}`, applied: (title, value) => `${title}: ${value} is in force.`,
  },
  people: {
    title: "People and roles",
    back: "← All people", span: "last 30 days", whom: "Whom to show", hint: "name in your application",
    first: "First", orders: [["", "least satisfied"], ["requests", "most requests"]], role: "Role", choose: "choose one", person: "Person",
    nobody: "Nobody yet", unnamed: "No request has named a role or a user.", unrated: "Nobody has rated an answer in the last 30 days.",
    nameRole: "Name a role in the request’s metadata.role.", name: "Name the user in the request’s field user, and the role in metadata.role.",
    all: "Show everybody who asked",
    summary: (unhappy, raters) => `${unhappy ? unhappy.toLocaleString("en") : "Nobody"} of ${raters.toLocaleString("en")} ${raters === 1 ? "person" : "people"} who rated ${unhappy > 1 ? "are" : "is"} unhappy: the whole 95 % interval of their mean rating is below 0.5.`,
    columns: (standard) => ["Person", "Role", "Requests", "Ratings", "Mean rating", "Mostly answered by", "Expected with it", standard ? `Expected with ${standard}` : "Expected with the default"],
    labels: ["requests", "ratings", "mean rating", "expected with it", "with the default"],
    unhappy: "unhappy", norole: "none",
    legend: "Mean rating of the last 30 days with its 95 % interval, ordered by its upper end: first those who are surely least satisfied. Expected ratings are those of the person’s leaderboard, with its 80 % interval.",
    start: "← First", next: "Next →",
    rating: "Mean rating of the last 30 days",
    rated: (mean, ends, { ratings, people }) => `${mean}${ends ? ` (${ends})` : ""}, ${ratings.toLocaleString("en")} rating${s(ratings)}${people > 1 ? ` by ${people.toLocaleString("en")} people` : ""}`,
  },
  models: {
    call: (m) => `Call ${m} again`, called: (m) => `${m} is called again.`, callAgain: "Call it again …", calling: "It gets requests again, at its price, as the policy draws it.",
    pause: (m) => `Pause ${m}`, paused: (m) => `${m} is not called any more.`, pausing: "Pause …",
    force: (m) => `Send all to ${m}`, forced: (m) => `All traffic goes to ${m}.`, forcing: "Send all traffic here …",
    draw: "Draw again", drawn: "Models are drawn again.", drawAgain: "Draw again …", drawing: "The policy draws the model of each request again, by its probabilities.",
    remove: (m) => `Remove ${m}`, removed: (m) => `${m} is removed.`, removal: "Remove …", removing: "It gets no further request; calls under way end normally. What was learnt of it stays in the log.",
  },
  since: {
    title: "Since you last looked",
    people: "Who is happy?", money: "What does it cost?", policy: "What is in force?", decisions: "Why these models?",
    unrated: "Nobody has rated an answer.",
    rated: (mean, ends, n, number) => `People rate ${mean} on average (${ends ? `${ends}, ` : ""}${n} rating${s(number)})`,
    few: "; too few people to compare with the time before.",
    up: (by) => `: happier than in as long a time before, by ${by}.`,
    down: (by) => `: less happy than in as long a time before, by ${by}.`,
    same: (low, high) => `; no clear change to as long a time before (${low} to ${high}).`,
    role: (role, by) => ` Most changed: ${role}, ${by}.`,
    quiet: "Nobody has asked anything.",
    cost: (n, money, number) => `${n} request${s(number)} cost ${money}`,
    answered: (n) => (n ? `, ${n} of them got no answer` : ""),
    alike: ", as much per request as before.",
    dearer: (by, more) => `, ${by} ${more ? "more" : "less"} per request than before.`,
    saved: (by, less, model) => ` In the time shown that is ${by} ${less ? "less" : "more"} than ${model} alone.`,
    changes: (said) => `Changed: ${said.join("; ")}.`,
    unchanged: (admin) => (admin ? "No setting was changed. " : ""),
    steady: "Each model answers the same share as before.",
    moved: (model, now, before) => `${model} answers ${now} of the requests, ${before} before.`,
  },
};
