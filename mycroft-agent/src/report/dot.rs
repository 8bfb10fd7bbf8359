//! The graph of waits as a drawing: DOT, and SVG made of it.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    graph::{Node, RankKey, Step},
    rules::{Verdict, View, words},
};

/// Ranks drawn one by one that only wait; more of them at one operation become one node.
const SINGLE: usize = 4;

/// The waits of all ranks. Red: named by a verdict.
#[must_use]
pub fn waits(view: &View<'_>, verdicts: &[&Verdict]) -> String {
    let steps = view.graph.steps();
    let folded = fold(&steps);
    let mut out = "digraph waits {\n  rankdir=LR;\n  node [shape=box];\n".to_owned();
    let mut names: BTreeMap<Node, String> = BTreeMap::new();
    for step in &steps {
        for node in [step.from, step.to] {
            if folded.contains_key(&node) || names.contains_key(&node) {
                continue;
            }
            let name = format!("n{}", names.len());
            let red = if is_named(view, node, verdicts) { ", color=red" } else { "" };
            _ = writeln!(out, "  {name} [label=\"{}\"{red}];", escape(&label(view, node)));
            names.insert(node, name);
        }
    }
    let mut groups: BTreeMap<Node, Vec<RankKey>> = BTreeMap::new();
    for (node, target) in &folded {
        if let Node::Rank(key) = node {
            groups.entry(*target).or_default().push(*key);
        }
    }
    for (i, (target, keys)) in groups.iter().enumerate() {
        let Some(to) = names.get(target) else { continue };
        _ = writeln!(out, "  g{i} [label=\"{} ranks that wait\"];\n  g{i} -> {to};", keys.len());
    }
    for step in steps.iter().filter(|s| !folded.contains_key(&s.from)) {
        if let (Some(from), Some(to)) = (names.get(&step.from), names.get(&step.to)) {
            _ = writeln!(out, "  {from} -> {to};");
        }
    }
    out.push_str("}\n");
    out
}

/// Ranks for which nobody waits, and that wait in one thing only, where they are many: with that thing.
fn fold(steps: &[Step]) -> BTreeMap<Node, Node> {
    let mut leaving: BTreeMap<Node, Vec<Node>> = BTreeMap::new();
    let mut entered: BTreeMap<Node, usize> = BTreeMap::new();
    for step in steps {
        leaving.entry(step.from).or_default().push(step.to);
        *entered.entry(step.to).or_default() += 1;
    }
    let mut by_target: BTreeMap<Node, Vec<Node>> = BTreeMap::new();
    for (node, targets) in leaving.iter().filter(|(n, _)| !entered.contains_key(n)) {
        if let ([target], Node::Rank(_)) = (targets.as_slice(), node) {
            by_target.entry(*target).or_default().push(*node);
        }
    }
    let many = by_target.into_iter().filter(|(_, nodes)| nodes.len() > SINGLE);
    many.flat_map(|(target, nodes)| nodes.into_iter().map(move |n| (n, target))).collect()
}

fn is_named(view: &View<'_>, node: Node, verdicts: &[&Verdict]) -> bool {
    let Node::Rank(key) = node else { return false };
    let host = view.state.host_name(key.proc.host);
    verdicts.iter().flat_map(|v| &v.culprits).any(|c| c.pid == key.proc.pid && c.host == host)
}

fn label(view: &View<'_>, node: Node) -> String {
    match node {
        Node::Rank(key) => {
            let ranks: Vec<String> = view
                .state
                .memberships(key.proc)
                .filter(|(_, m)| m.cuda_dev == key.cuda_dev)
                .take(1)
                .map(|(_, m)| words::rank_and_pid(view, m))
                .collect();
            ranks.into_iter().next().unwrap_or_else(|| format!("pid {}", key.proc.pid))
        }
        Node::Operation { comm, seq } => {
            let known = view.state.comms.get(&comm);
            known.map_or_else(
                || format!("collective #{seq}"),
                |c| format!("{}\n{}", words::expected(c, seq), words::comm(c)),
            )
        }
        Node::Unseen { comm } => format!("ranks of {comm} that are not in sight"),
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The drawing itself.
///
/// # Errors
/// If the DOT text can't be read, with the reason.
pub fn svg(dot: &str) -> Result<String, String> {
    let graph = layout::gv::DotParser::new(dot).process()?;
    let mut builder = layout::gv::GraphBuilder::new();
    builder.visit_graph(&graph);
    let mut drawing = builder.get();
    let mut svg = layout::backends::svg::SVGWriter::new();
    drawing.do_it(false, false, false, &mut svg);
    Ok(svg.finalize())
}
