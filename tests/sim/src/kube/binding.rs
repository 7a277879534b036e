//! TargetGroupBindings of the AWS Load Balancer Controller, and admission policies with their bindings.

use super::Kube;
use super::object::Object;
use super::route::Resource;
use serde_json::{Value, json};

impl Kube {
    /// Adds a binding to this target group, of type `instance` or `ip`, or replaces it. Before the first one the cluster does not know
    /// the resource.
    ///
    /// # Panics
    ///
    /// Never: it writes a valid object.
    pub fn bind_target_group(&self, namespace: &str, name: &str, arn: &str, target_type: &str) {
        let mut state = self.state();
        let binding = json!({
            "metadata": { "name": name, "namespace": namespace, "uid": state.uuid() },
            "spec": { "targetGroupARN": arn, "targetType": target_type, "serviceRef": { "name": name, "port": 80 } },
        });
        let Value::Object(binding) = binding else { unreachable!("it is written as an object") };
        let binding = Object::from_value(Resource::Bindings, binding).expect("a binding must be valid");
        state.put(Resource::Bindings, binding);
    }

    /// Adds the admission policy `ebbtide-KIND` with this kind as the label of Ebbtide's chart, or replaces it. The simulation enforces none.
    ///
    /// # Panics
    ///
    /// Never: it writes a valid object.
    pub fn put_policy(&self, kind: &str, spec: &Value) {
        let mut state = self.state();
        let name = format!("ebbtide-{kind}");
        let policy = json!({
            "metadata": { "name": name, "uid": state.uuid(), "labels": { "ebbtide/policy": kind } },
            "spec": spec,
        });
        let Value::Object(policy) = policy else { unreachable!("it is written as an object") };
        let policy = Object::from_value(Resource::Policies, policy).expect("a policy must be valid");
        state.put(Resource::Policies, policy);
    }

    /// Binds the admission policy `ebbtide-KIND`, or replaces its binding.
    ///
    /// # Panics
    ///
    /// Never: it writes a valid object.
    pub fn bind_policy(&self, kind: &str, action: &str) {
        let mut state = self.state();
        let name = format!("ebbtide-{kind}");
        let binding = json!({
            "metadata": { "name": name, "uid": state.uuid(), "labels": { "ebbtide/policy": kind } },
            "spec": { "policyName": name, "validationActions": [action] },
        });
        let Value::Object(binding) = binding else { unreachable!("it is written as an object") };
        let binding = Object::from_value(Resource::PolicyBindings, binding).expect("a binding must be valid");
        state.put(Resource::PolicyBindings, binding);
    }
}
