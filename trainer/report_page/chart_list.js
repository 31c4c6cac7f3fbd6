// Which curves the first view draws, under which headings; what is not listed goes to the closed part.

const one = (title, name, color, more) => ({
  title,
  format: format.number,
  series: [{ name, color: `var(--${color})` }],
  ...more,
});

// The known charts. `name` may list alternatives ("a|b"): the first one that the run has is drawn.
function sections() {
  const share = { format: format.share, axis: (v) => `${Math.round(100 * v)} %`, low: 0, high: 1 };
  const small = { format: format.share, axis: (v) => `${+(100 * v).toPrecision(3)} %`, low: 0 };
  const limit = page.config?.guards?.max_logprob_diff;
  const stop = isNumber(limit) ? { value: limit, label: "run stops" } : null;
  const ends = Object.keys(page.series)
    .filter((name) => /^rollout\/end_.+_share$/.test(name))
    .sort();
  return [
    [
      "Learning",
      "Averages over all paths of a step.",
      [
        {
          title: "Success",
          wide: true,
          ...share,
          series: [
            { name: "rollout/success", label: "training", color: "var(--c2)" },
            { name: "eval/success", label: "held-out", color: "var(--c1)", points: true },
          ],
        },
        {
          title: "Reward",
          format: format.number,
          series: [
            { name: "rollout/reward|reward/mean", label: "mean", color: "var(--c1)" },
            { name: "reward/std", label: "spread (std)", color: "var(--c3)" },
          ],
        },
        {
          title: "Without signal",
          ...share,
          note: "Tasks whose advantages are all 0, and trees whose paths all got the same reward.",
          series: [
            { name: "reward/dead_groups", label: "tasks", color: "var(--c5)" },
            { name: "reward/dead_trees", label: "trees", color: "var(--c4)" },
          ],
        },
        {
          title: "How paths ended",
          stack: true,
          ...share,
          series: ends.map((name, i) => ({
            name,
            label: name.slice(12, -6).replaceAll("_", " "),
            color: `var(--c${(i % 6) + 1})`,
          })),
        },
      ],
    ],
    ...decisionSections(share, small),
    [
      "Cost",
      "Counted by the token ledger and the clock.",
      [
        {
          title: "Tokens",
          wide: true,
          stack: true,
          format: format.short,
          series: [
            { name: "ledger/sampled_tokens", label: "sampled", color: "var(--c1)" },
            { name: "ledger/prefill_tokens_computed", label: "prefill computed", color: "var(--c3)" },
            { name: "ledger/prefill_tokens_cached", label: "prefill cached", color: "var(--c6)" },
          ],
        },
        {
          title: "Time per phase",
          stack: true,
          format: format.seconds,
          axis: (v) => `${format.short(v)}s`,
          series: [
            { name: "time/collect_s", label: "collect", color: "var(--c1)" },
            { name: "time/learn_s", label: "learn", color: "var(--c2)" },
            { name: "time/push_s", label: "push", color: "var(--c5)" },
            { name: "time/eval_s", label: "eval", color: "var(--c4)" },
          ],
        },
        {
          title: "Tokens per second",
          format: format.count,
          axis: format.short,
          low: 0,
          series: [
            { name: "rollout/tokens_per_s", label: "sampled", color: "var(--c1)" },
            { name: "learner/tokens_per_s", label: "trained", color: "var(--c2)" },
          ],
        },
        {
          title: "Sharing prefixes in training",
          format: format.count,
          axis: format.short,
          low: 0,
          note: "Tokens the learner would run with one row per path, tokens of the trees, and what cutting trees repeats.",
          series: [
            { name: "tree/flat_tokens", label: "one row per path", color: "var(--c3)" },
            { name: "tree/unique_tokens", label: "tree", color: "var(--c1)" },
            { name: "tree/repeated_tokens", label: "repeated", color: "var(--c5)" },
          ],
        },
        one("Tokens of rows per token of the trees", "learner/tree_token_ratio", "c3"),
        one("Tool calls", "ledger/tool_calls", "c4", { low: 0 }),
        {
          title: "Prefill per prompt or observation token",
          format: format.number,
          note: "How often the engine ran each through the model: 1 is the least, more is lost cache.",
          series: [
            { name: "rollout/prefill_overhead", label: "computed", color: "var(--c3)" },
            { name: "rollout/prefill_block_bound", label: "with whole blocks cached", color: "var(--c1)" },
          ],
        },
        one("Engines busy", "rollout/engine_busy_share", "c6", share),
      ],
    ],
    [
      "Learner",
      "One optimizer phase per step.",
      [
        one("Loss", "learner/loss", "c2"),
        one("Gradient norm", "learner/grad_norm", "c2", { low: 0 }),
        one("KL to the reference", "learner/kl_reference|learner/kl", "c4", { low: 0 }),
        one("KL to the sampling policy", "learner/approx_kl", "c4", { low: 0 }),
        one("Clipped tokens", "learner/clip_share", "c3", small),
        one("Entropy", "learner/entropy", "c6"),
        one("Learning rate", "learner/lr", "c1", { low: 0 }),
        one("Trained tokens", "learner/trained_tokens|learner/tokens", "c1", { low: 0 }),
        {
          title: "Skipped steps",
          format: format.count,
          low: 0,
          note: "Optimizer steps that were not applied, and how many in a row had a loss or gradient that is not finite.",
          series: [
            { name: "learner/skipped_steps", label: "skipped", color: "var(--c5)" },
            { name: "learner/skipped_by_guard", label: "beyond a bound", color: "var(--c3)" },
            { name: "learner/bad_steps", label: "in a row", color: "var(--c2)" },
          ],
        },
        {
          title: "Truncated importance weights",
          format: format.number,
          low: 0,
          note: "Mean weight that corrects for the engine's probabilities, and the share that reached the cap.",
          series: [
            { name: "learner/tis_weight", label: "mean", color: "var(--c1)" },
            { name: "learner/tis_capped_share", label: "capped", color: "var(--c3)", format: format.share },
          ],
        },
        one("Cost of a rank, mean over largest", "tree/rank_balance", "c6", share),
      ],
    ],
    [
      "Weight push",
      "After each push the engine's log-probabilities are compared with the learner's.",
      [
        one("Largest log-probability difference", "push/max_abs_logprob_diff", "c5", { low: 0, limit: stop }),
        one("Largest difference on the tokens trained", "learner/mismatch_max_abs_logprob_diff", "c5", { low: 0 }),
        one("Push time", "push/seconds", "c1", { format: format.seconds, low: 0 }),
        one("Bytes pushed", "push/bytes", "c2", { low: 0 }),
      ],
    ],
    [
      "Trees",
      "What the search grew.",
      [
        one("Paths (leaves)", "tree/leaves", "c1", { low: 0 }),
        one("Nodes", "tree/nodes", "c2", { low: 0 }),
        one("Depth", "tree/depth", "c4", { low: 0 }),
        one("Trees", "tree/trees", "c3", { low: 0 }),
        one("Score of picked nodes", "tree/pick_score_mean", "c1"),
        one("Depth of picked nodes", "tree/pick_depth_mean", "c4", { low: 0 }),
        one("Branches that start at the prompt", "tree/pick_root_share", "c3", share),
        {
          title: "Wasted or cut short",
          format: format.count,
          low: 0,
          note: "Branches whose first action a sibling had already, and trees whose budget ended their growth.",
          series: [
            { name: "ledger/siblings_equal", label: "equal siblings", color: "var(--c5)" },
            { name: "ledger/growth_stopped", label: "growth stopped", color: "var(--c2)" },
          ],
        },
      ],
    ],
  ];
}

// One curve per decision node, in the order of the declaration; nothing in runs of flat policies.
function decisionSections(share, small) {
  const found = Object.keys(page.series).flatMap((name) => name.match(/^decision\/([a-z][a-z0-9_]*)\/steps$/)?.[1] ?? []);
  if (!found.length) return [];
  const declared = (page.config?.decision?.nodes ?? []).map((node) => node.name);
  const place = (name) => (declared.includes(name) ? declared.indexOf(name) : declared.length);
  const nodes = found.sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));
  const each = (title, metric, more) => ({
    title,
    format: format.number,
    series: nodes.map((node, i) => ({
      name: metric.split("|").map((one) => `decision/${node}/${one}`).join("|"),
      label: node,
      color: `var(--c${(i % 6) + 1})`,
    })),
    ...more,
  });
  const counts = (group, names) =>
    names.map(([name, label], i) => ({ name: `decision/${group}/${name}`, label, color: `var(--c${i + 1})` }));
  return [
    [
      "Decision nodes",
      "One curve per node: its reward, how far its policy moved, and its part in the loss.",
      [
        each("Reward by node", "reward", { wide: true, note: "Before normalisation; mean of the step." }),
        each("Valid outputs", "valid_share", share),
        each("KL by node", "kl_mean|kl", { low: 0 }),
        each("Entropy by node", "entropy", { low: 0 }),
        each("Share of its level", "share", { ...share, note: "Routing: how a level's gradient is divided among its nodes." }),
        each("Loss factor", "factor", { low: 0, note: "Decay by depth times the routing share times the number of nodes of the level." }),
        each("Steps with a penalty", "penalised_share", small),
        each("Clipped tokens by node", "clip_share", small),
        {
          title: "Human feedback",
          format: format.count,
          low: 0,
          series: counts("feedback", [
            ["queued", "queued"],
            ["labelled", "labels"],
            ["late", "trained"],
            ["expired", "expired"],
            ["unknown", "unknown"],
          ]),
        },
        {
          title: "Nodes that the gate let run",
          ...share,
          series: counts("gate", [["run_share", "share"]]),
        },
        {
          title: "Tokens saved by the gate",
          format: format.count,
          axis: format.short,
          low: 0,
          note: "Prompts and answers of the skipped nodes, each by the mean of its steps.",
          series: counts("gate", [["saved_tokens", "tokens"]]),
        },
        {
          title: "Engine time saved by the gate",
          format: format.seconds,
          axis: (v) => `${format.short(v)}s`,
          low: 0,
          note: "Of the skipped nodes, each by the mean of its steps.",
          series: counts("gate", [["saved_s", "seconds"]]),
        },
      ],
    ],
  ];
}
