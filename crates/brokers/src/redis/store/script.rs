//! The scripts, which run at Redis.

/// A script. Each has a queue of its own: operations of different scripts have no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptName {
    Log,
    Keys,
    Windows,
}

impl ScriptName {
    pub(super) const COUNT: usize = 3;
    pub(super) const ALL: [Self; Self::COUNT] = [Self::Log, Self::Keys, Self::Windows];
}

/// Constants of the scripts, which tests change.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptRules {
    /// Least number of sequences that are skipped when another server has the data; 1 switches the rule off. More writes
    /// than these cannot be lost at once.
    pub(super) jump: u64,
    /// Field of `INFO replication` that another server has differently.
    pub(super) id_field: &'static str,
    /// Time in milliseconds for which removals of keys are remembered.
    pub(super) removals_kept: u64,
    /// The servers are a Redis Cluster: channels are sharded, and slots move.
    pub(super) is_cluster: bool,
}

impl Default for ScriptRules {
    fn default() -> Self {
        Self { jump: 1 << 20, id_field: "master_replid", removals_kept: 60_000, is_cluster: false }
    }
}

/// The texts, by script.
pub(super) struct Scripts([String; ScriptName::COUNT]);

impl Scripts {
    pub(super) fn new(rules: ScriptRules) -> Self {
        let script = |operations: &str| {
            let text = [include_str!("prelude.lua"), operations, include_str!("execute.lua")].join("\n");
            text.replace("@JUMP@", &rules.jump.to_string())
                .replace("@ID_FIELD@", rules.id_field)
                .replace("@REMOVALS_KEPT@", &rules.removals_kept.to_string())
                .replace("@IS_CLUSTER@", if rules.is_cluster { "true" } else { "false" })
        };
        Self([include_str!("log.lua"), include_str!("keys.lua"), include_str!("windows.lua")].map(script))
    }

    pub(super) fn text(&self, script: ScriptName) -> &str {
        &self.0[script as usize]
    }
}
