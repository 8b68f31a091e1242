//! The fake engine with faults: the checks find nothing, and find each rule that is switched off.

use sinews_checker::{Check, Findings, Jump, LinkFaults, Part, Plan, PlannedFault, Rules, check, run};

/// All findings of plans.
fn findings(plans: impl Iterator<Item = Plan>) -> Findings {
    let mut all = Findings::default();
    for plan in plans {
        all.add(check(&run(&plan)));
    }
    all
}

/// Runs with a failover that loses writes.
fn failovers(rules: Rules) -> impl Iterator<Item = Plan> {
    (0..10).map(move |seed| Plan {
        rules,
        faults: vec![
            (2_000_000, PlannedFault::StopReplication),
            (3_000_000, PlannedFault::FailOver { away: None }),
        ],
        ..Plan::calm(seed)
    })
}

#[test]
fn quick_lane_finds_nothing() {
    let found = findings((0..200).map(Plan::from_seed));
    assert_eq!(found.violations, []);
    let counts = found.counts;
    // The faults happen, and are noticed.
    assert!(counts.unknown > 500 && counts.failed > 1_000 && counts.lost > 500, "{counts}");
    assert_eq!(counts.undecided, 0);
    assert!(counts.resumed > 10_000 && counts.incomplete > 100 && counts.resets > 100, "{counts}");
}

/// Seeds that have found faults of nodes, and of the checks.
const SEEDS: [u64; 7] = [1_018, 2_091, 2_464, 2_864, 106_493, 1_004_560, 1_004_891];

#[test]
fn seeds_that_found_faults_find_none() {
    assert_eq!(findings(SEEDS.into_iter().map(Plan::from_seed)).violations, []);
}

#[test]
fn calm_run_resumes_everywhere_and_loses_nothing() {
    let found = findings((0..10).map(Plan::calm));
    assert_eq!(found.violations, []);
    let counts = found.counts;
    assert_eq!((counts.unknown, counts.lost, counts.needless), (0, 0, 0), "{counts}");
}

#[test]
fn run_is_the_same_for_the_same_seed() {
    let run = || {
        let mut text = Vec::new();
        run(&Plan::from_seed(7)).write(&mut text).map(|()| text)
    };
    assert_eq!(run().expect("a vector accepts all"), run().expect("a vector accepts all"));
}

#[test]
fn failover_without_a_jump_loses_writes_silently() {
    assert_eq!(findings(failovers(Rules::default())).violations, []);
    let found = findings(failovers(Rules { jump: Jump::Never, ..Rules::default() }));
    assert!(found.has(Check::Loss) && found.has(Check::Sequences), "{:?}", found.violations.first());
}

#[test]
fn fixed_jump_repeats_sequences_if_it_is_lost() {
    let twice = |jump| {
        findings(failovers(Rules { jump, ..Rules::default() }).map(|mut plan| {
            // The second new primary has not received the first jump.
            plan.faults.push((4_000_000, PlannedFault::FailOver { away: None }));
            plan
        }))
    };
    assert_eq!(twice(Jump::ToTime).violations, []);
    assert!(twice(Jump::Fixed).has(Check::Sequences));
}

#[test]
fn lock_without_its_condition_has_two_holders() {
    let plans = |if_new| {
        let rules = Rules { if_new, ..Rules::default() };
        (0..10).map(move |seed| Plan { rules, ..Plan::calm(seed) })
    };
    assert_eq!(findings(plans(true)).violations, []);
    let found = findings(plans(false));
    assert!(found.has(Check::Exclusion) && found.has(Check::Linearizable), "{:?}", found.violations.first());
}

#[test]
fn lost_notification_without_an_audit_is_never_noticed() {
    let plans = |audits| {
        let links = LinkFaults { notices_dropped: 300, ..LinkFaults::default() };
        (0..10).map(move |seed| Plan { audits, links, ..Plan::calm(seed) })
    };
    assert_eq!(findings(plans(true)).violations, []);
    assert!(findings(plans(false)).has(Check::Convergence));
}

#[test]
fn evicted_topic_has_another_epoch_and_its_clients_a_reset() {
    let plans = (0..10).map(|seed| Plan {
        faults: vec![
            (4_000_000, PlannedFault::Evict(Part::log(0))),
            (5_000_000, PlannedFault::Evict(Part::keys(2))),
        ],
        ..Plan::calm(seed)
    });
    let found = findings(plans);
    assert_eq!(found.violations, []);
    assert!(found.counts.resets >= 10, "{}", found.counts);
}
