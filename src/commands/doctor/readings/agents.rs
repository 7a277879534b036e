//! The agents of the cluster.

use std::collections::BTreeMap;

/// The pods of agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agents {
    /// One agent for each Node that has one: a ready one, if there is any.
    pub by_node: BTreeMap<String, AgentPod>,
    /// Whether all were listed.
    pub complete: bool,
}

/// The pod of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPod {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Whether the pod is ready.
    pub ready: bool,
}
