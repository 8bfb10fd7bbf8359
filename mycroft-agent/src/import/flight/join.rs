//! All ranks' dumps as one job: which groups there are, and which of a rank's counters belongs to which.

use std::collections::{BTreeMap, BTreeSet};

use super::dump::{Dump, Group, Status};

/// A process group over all ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey {
    pub(super) name: String,
    /// Job ranks in the order of their ranks in the group.
    pub(super) ranks: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) dumps: BTreeMap<u32, Dump>,
    /// By rank: the group's number on it for each of its groups' names.
    ids: BTreeMap<u32, BTreeMap<String, u64>>,
    /// Names of groups with sends and receives. Their counters are those of the last call, whichever kind it was.
    mixed: BTreeSet<String>,
    /// Ranks that the groups name.
    pub(super) all_ranks: BTreeSet<u32>,
}

impl Job {
    pub(super) fn of(mut dumps: BTreeMap<u32, Dump>) -> Self {
        let named = |d: &Dump| d.groups.values().flat_map(|g| g.ranks.clone()).collect::<Vec<_>>();
        let all_ranks: BTreeSet<u32> = dumps.values().flat_map(named).chain(dumps.keys().copied()).collect();
        name_members(&mut dumps, &all_ranks);
        let mixed = dumps.values().flat_map(|d| d.entries.iter().filter(|e| e.p2p)).map(|e| e.group.clone()).collect();
        let ids = join_ids(&dumps);
        Self { dumps, ids, mixed, all_ranks }
    }

    /// A rank's groups, with its own rank in each.
    pub(super) fn groups_of(&self, rank: u32) -> Vec<(GroupKey, &Group, u32)> {
        let groups = self.dumps.get(&rank).into_iter().flat_map(|d| &d.groups);
        groups
            .filter_map(|(name, group)| {
                let local = group.ranks.iter().position(|r| *r == rank)?;
                Some((GroupKey { name: name.clone(), ranks: group.ranks.clone() }, group, local as u32))
            })
            .collect()
    }

    /// PyTorch's count of the collectives of a rank in a group; `None` where it can't be told which count is whose.
    pub(super) fn status(&self, rank: u32, group: &str) -> Option<Status> {
        if self.mixed.contains(group) {
            return None;
        }
        let id = self.ids.get(&rank)?.get(group)?;
        self.dumps.get(&rank)?.status.get(id).copied()
    }
}

/// Fills in what a dump leaves out: groups that only operations mention, and the ranks of a group without a list. The
/// default group has all ranks; of another, those are known that mention it.
fn name_members(dumps: &mut BTreeMap<u32, Dump>, all: &BTreeSet<u32>) {
    for dump in dumps.values_mut() {
        for e in &dump.entries {
            let group = dump.groups.entry(e.group.clone()).or_default();
            if group.desc.is_empty() {
                group.desc.clone_from(&e.desc);
            }
        }
    }
    let mut mentioned: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    let mut listed: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (rank, dump) in dumps.iter() {
        for (name, group) in &dump.groups {
            if group.ranks.is_empty() {
                mentioned.entry(name.clone()).or_default().insert(*rank);
            } else {
                listed.entry(name.clone()).or_insert_with(|| group.ranks.clone());
            }
        }
    }
    for group in dumps.values_mut().flat_map(|d| &mut d.groups).filter(|(_, g)| g.ranks.is_empty()) {
        let (name, group) = group;
        group.ranks = match listed.get(name) {
            Some(ranks) => ranks.clone(),
            None if name == "0" || group.desc == "default_pg" => all.iter().copied().collect(),
            None => mentioned.get(name).into_iter().flatten().copied().collect(),
        };
    }
}

/// Counters are kept by a number that each rank gives its groups; only operations hold number and name side by side.
fn join_ids(dumps: &BTreeMap<u32, Dump>) -> BTreeMap<u32, BTreeMap<String, u64>> {
    let mut ids: BTreeMap<u32, BTreeMap<String, u64>> =
        dumps.iter().map(|(rank, d)| (*rank, in_order(d).unwrap_or_else(|| by_entries(d)))).collect();
    let usual = usual_ids(&ids);
    for (rank, dump) in dumps {
        let Some(own) = ids.get_mut(rank) else { continue };
        let mut taken: BTreeSet<u64> = own.values().copied().collect();
        for name in dump.groups.keys() {
            if !own.contains_key(name)
                && let Some(id) = usual.get(name).filter(|id| dump.status.contains_key(id))
                && taken.insert(*id)
            {
                own.insert(name.clone(), *id);
            }
        }
    }
    ids
}

fn by_entries(dump: &Dump) -> BTreeMap<String, u64> {
    dump.entries.iter().map(|e| (e.group.clone(), e.group_id)).collect()
}

/// PyTorch names groups by a count that goes on over the whole job, and numbers a rank's groups as it enters them. Both
/// grow, so the n-th name has the n-th number. `None` where names are no numbers, or an operation says otherwise.
fn in_order(dump: &Dump) -> Option<BTreeMap<String, u64>> {
    let mut names: Vec<(u64, &String)> =
        dump.groups.keys().map(|n| Some((n.parse().ok()?, n))).collect::<Option<_>>()?;
    names.sort_unstable();
    if names.len() != dump.status.len() {
        return None;
    }
    let ids: BTreeMap<String, u64> =
        names.iter().zip(dump.status.keys()).map(|((_, name), id)| ((*name).clone(), *id)).collect();
    by_entries(dump).iter().all(|(name, id)| ids.get(name) == Some(id)).then_some(ids)
}

/// The number that most ranks give a group: programs make their groups in one order.
fn usual_ids(ids: &BTreeMap<u32, BTreeMap<String, u64>>) -> BTreeMap<String, u64> {
    let mut votes: BTreeMap<&String, BTreeMap<u64, usize>> = BTreeMap::new();
    for (name, id) in ids.values().flatten() {
        *votes.entry(name).or_default().entry(*id).or_default() += 1;
    }
    let most = |v: &BTreeMap<u64, usize>| v.iter().max_by_key(|(_, n)| **n).map(|(id, _)| *id);
    votes.into_iter().filter_map(|(name, v)| Some((name.clone(), most(&v)?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(id: u64, name: &str, seq: u64) -> Value {
        json!({"pg_id": id, "process_group": [name, "d"], "collective_seq_id": seq, "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1, "state": "scheduled"})
    }

    fn dump(groups: &[(&str, &str)], ids: &[u64], entries: &[Value]) -> Dump {
        let config: serde_json::Map<String, Value> =
            groups.iter().map(|(n, r)| ((*n).to_owned(), json!({"desc": "d", "ranks": r}))).collect();
        let status: serde_json::Map<String, Value> = ids
            .iter()
            .map(|i| (i.to_string(), json!({"last_enqueued_collective": i * 10, "last_completed_collective": i * 10})))
            .collect();
        Dump::of(&json!({"pg_config": config, "pg_status": status, "entries": entries})).unwrap()
    }

    fn enqueued(job: &Job, rank: u32, group: &str) -> Option<u64> {
        job.status(rank, group)?.enqueued
    }

    #[test]
    fn an_idle_ranks_counters_are_joined_by_order() {
        let groups = [("0", "[0, 1]"), ("112", "[0, 1]"), ("35", "[0, 1]")];
        let busy = dump(&groups, &[0, 5, 9], &[entry(5, "35", 51)]);
        let idle = dump(&groups, &[0, 4, 9], &[]);
        let job = Job::of(BTreeMap::from([(0, busy), (1, idle)]));
        assert_eq!(enqueued(&job, 0, "35"), Some(50));
        assert_eq!(enqueued(&job, 1, "35"), Some(40), "35 is the second by number, 112 the third");
        assert_eq!(enqueued(&job, 1, "112"), Some(90));
    }

    #[test]
    fn with_names_that_are_no_numbers_by_what_other_ranks_say() {
        let groups = [("0", "[0, 1]"), ("f00d", "[0, 1]")];
        let busy = dump(&groups, &[0, 5], &[entry(5, "f00d", 51)]);
        let idle = dump(&groups, &[0, 5], &[]);
        let other = dump(&groups, &[0, 7], &[]);
        let job = Job::of(BTreeMap::from([(0, busy), (1, idle), (2, other)]));
        assert_eq!((enqueued(&job, 1, "f00d"), enqueued(&job, 2, "f00d")), (Some(50), None));
    }

    #[test]
    fn counters_of_groups_with_sends_say_nothing() {
        let mut send = entry(5, "35", 3);
        send["profiling_name"] = json!("nccl:send 0->1");
        send["p2p_seq_id"] = json!(3);
        let job = Job::of(BTreeMap::from([(0, dump(&[("35", "[0, 1]")], &[5], &[send]))]));
        assert_eq!(enqueued(&job, 0, "35"), None);
    }

    #[test]
    fn groups_without_a_list_have_the_ranks_that_mention_them() {
        let dumps = [0, 1, 2].map(|r| (r, dump(&[("0", "")], &[], &[entry(1, if r == 1 { "8" } else { "9" }, 1)])));
        let job = Job::of(BTreeMap::from(dumps));
        let ranks = |rank| job.groups_of(rank).into_iter().map(|(k, _, l)| (k.name, k.ranks, l)).collect::<Vec<_>>();
        assert_eq!(ranks(2), [("0".to_owned(), vec![0, 1, 2], 2), ("9".to_owned(), vec![0, 2], 1)]);
    }
}
