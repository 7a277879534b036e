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
        let spec =
            json!({ "targetGroupARN": arn, "targetType": target_type, "serviceRef": { "name": name, "port": 80 } });
        self.put_object(Resource::Bindings, json!({ "name": name, "namespace": namespace }), &spec);
    }

    /// Adds the admission policy `ebbtide-KIND` with this kind as the label of Ebbtide's chart, or replaces it. The simulation enforces none.
    ///
    /// # Panics
    ///
    /// Never: it writes a valid object.
    pub fn put_policy(&self, kind: &str, spec: &Value) {
        self.put_object(Resource::Policies, of_policy(kind), spec);
    }

    /// Binds the admission policy `ebbtide-KIND`, or replaces its binding.
    ///
    /// # Panics
    ///
    /// Never: it writes a valid object.
    pub fn bind_policy(&self, kind: &str, action: &str) {
        let spec = json!({ "policyName": format!("ebbtide-{kind}"), "validationActions": [action] });
        self.put_object(Resource::PolicyBindings, of_policy(kind), &spec);
    }

    /// Adds an object with this spec, or replaces that of its name.
    fn put_object(&self, resource: Resource, mut metadata: Value, spec: &Value) {
        let mut state = self.state();
        metadata["uid"] = json!(state.uuid());
        let Value::Object(object) = json!({ "metadata": metadata, "spec": spec }) else {
            unreachable!("it is written as an object")
        };
        let object = Object::from_value(resource, object).expect("the object must be valid");
        state.put(resource, object);
    }
}

/// Returns the metadata of a policy of this kind, or of its binding.
fn of_policy(kind: &str) -> Value {
    json!({ "name": format!("ebbtide-{kind}"), "labels": { "ebbtide/policy": kind } })
}
