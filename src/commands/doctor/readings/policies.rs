//! The chart's admission policies.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicySpec;

/// The admission policies with the chart's label, and their bindings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policies {
    /// The policies.
    pub policies: Vec<Policy>,
    /// The names of the policies whose refusals a binding enforces for all objects.
    pub enforced: Vec<String>,
}

/// An admission policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The value of its label: what it is for.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// What it refuses.
    pub spec: ValidatingAdmissionPolicySpec,
}
