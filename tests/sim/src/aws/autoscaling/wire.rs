//! Auto Scaling's wire format: forms in, wrapped XML out.

use super::state::{State, Which};
use super::{GroupSpec, HookSpec};
use crate::aws::REGION;
use crate::aws::query::{Form, Xml, answer_wrapped};
use crate::aws::refusal::Refusal;
use bytes::Bytes;

/// Returns the subject of a call: a token or an instance if the call names one, else the group.
pub(super) fn subject(form: &Form) -> &str {
    ["LifecycleActionToken", "InstanceId", "AutoScalingGroupName"]
        .into_iter()
        .find_map(|name| form.get(name))
        .unwrap_or_default()
}

pub(super) fn perform(state: &mut State, operation: &str, form: &Form) -> Result<http::Response<Bytes>, Refusal> {
    match operation {
        "DescribeLifecycleHooks" => describe(state, form),
        "DescribeAutoScalingInstances" => Ok(members(state, form)),
        "DescribeAutoScalingGroups" => Ok(describe_groups(state, form)),
        "SetInstanceHealth" => {
            let healthy = match required(form, "HealthStatus")? {
                "Healthy" => true,
                "Unhealthy" => false,
                other => {
                    let message = format!("Valid instance health states are: [Healthy, Unhealthy], not {other}");
                    return Err(Refusal::new("ValidationError", message));
                }
            };
            state.set_health(required(form, "InstanceId")?, healthy)?;
            Ok(answer_wrapped(operation, |_| {}))
        }
        "RecordLifecycleActionHeartbeat" => {
            state.beat(&which(form)?)?;
            Ok(answer_wrapped(operation, |_| {}))
        }
        "CompleteLifecycleAction" => {
            let which = which(form)?;
            let result = required(form, "LifecycleActionResult")?;
            if !matches!(result, "CONTINUE" | "ABANDON") {
                let message = format!("Invalid LifecycleActionResult {result}: it must be CONTINUE or ABANDON");
                return Err(Refusal::new("ValidationError", message));
            }
            state.complete(&which, result)?;
            Ok(answer_wrapped(operation, |_| {}))
        }
        other => {
            let message = format!("Could not find operation {other} for version 2011-01-01");
            Err(Refusal::new("InvalidAction", message))
        }
    }
}

/// Selects the named hooks, and leaves out names that do not exist. The group must exist.
fn describe(state: &State, form: &Form) -> Result<http::Response<Bytes>, Refusal> {
    let group = required(form, "AutoScalingGroupName")?;
    let names = form.list("LifecycleHookNames.member");
    let hooks = state.hooks(group)?;
    Ok(answer_wrapped("DescribeLifecycleHooks", |xml| {
        xml.nest("LifecycleHooks", |xml| {
            for (name, spec) in hooks {
                if names.is_empty() || names.contains(&name.as_str()) {
                    xml.nest("member", |xml| write_hook(xml, group, name, spec, state.target.as_deref()));
                }
            }
        });
    }))
}

/// Selects those of the named instances that are in a group. One with a waiting action waits.
fn members(state: &State, form: &Form) -> http::Response<Bytes> {
    let asked = form.list("InstanceIds.member");
    answer_wrapped("DescribeAutoScalingInstances", |xml| {
        xml.nest("AutoScalingInstances", |xml| {
            for instance in asked {
                let terminated = state.terminated(instance);
                let of_action = terminated.map(|(group, _)| group);
                let Some(group) = state.members.get(instance).map(String::as_str).or(of_action) else { continue };
                xml.nest("member", |xml| {
                    xml.text("InstanceId", instance);
                    xml.text("AutoScalingGroupName", group);
                    xml.text("AvailabilityZone", &format!("{REGION}a"));
                    let is_leaving = state.leaving.contains(instance);
                    let set = || state.specs.get(group)?.states.get(instance).map(String::as_str);
                    let shown = match terminated {
                        Some((_, true)) => "Terminating:Wait",
                        Some((_, false)) => "Terminating:Proceed",
                        None if is_leaving => "Terminating",
                        None => set().unwrap_or("InService"),
                    };
                    xml.text("LifecycleState", shown);
                    xml.text("HealthStatus", "HEALTHY");
                    xml.text("ProtectedFromScaleIn", "false");
                });
            }
        });
    })
}

/// Selects the named groups, or all. A page's token is the last name of the page before it.
fn describe_groups(state: &State, form: &Form) -> http::Response<Bytes> {
    let asked = form.list("AutoScalingGroupNames.member");
    let (names, more) = state.names_after(form.get("NextToken").unwrap_or_default(), &asked);
    answer_wrapped("DescribeAutoScalingGroups", |xml| {
        xml.nest("AutoScalingGroups", |xml| {
            for name in &names {
                xml.nest("member", |xml| write_group(xml, name, state.specs.get(*name), &state.unhealthy));
            }
        });
        if let Some(last) = names.last().filter(|_| more) {
            xml.text("NextToken", last);
        }
    })
}

fn write_group(xml: &mut Xml, name: &str, spec: Option<&GroupSpec>, unhealthy: &[String]) {
    xml.text("AutoScalingGroupName", name);
    let Some(spec) = spec else { return };
    xml.text("CapacityRebalance", if spec.capacity_rebalance { "true" } else { "false" });
    xml.nest("Instances", |xml| {
        for id in &spec.instances {
            xml.nest("member", |xml| {
                xml.text("InstanceId", id);
                xml.text("LifecycleState", spec.states.get(id).map_or("InService", String::as_str));
                xml.text("HealthStatus", if unhealthy.contains(id) { "Unhealthy" } else { "Healthy" });
                xml.text("ProtectedFromScaleIn", if spec.protected.contains(id) { "true" } else { "false" });
            });
        }
    });
    xml.text("DesiredCapacity", &spec.desired.to_string());
    xml.text("MaxSize", &spec.max.to_string());
    if let Some((least, most)) = spec.maintenance {
        xml.nest("InstanceMaintenancePolicy", |xml| {
            xml.text("MinHealthyPercentage", &least.to_string());
            xml.text("MaxHealthyPercentage", &most.to_string());
        });
    }
    if let Some(lifetime) = spec.max_lifetime {
        xml.text("MaxInstanceLifetime", &lifetime.to_string());
    }
    xml.nest("SuspendedProcesses", |xml| {
        for process in &spec.suspended {
            xml.nest("member", |xml| xml.text("ProcessName", process));
        }
    });
    xml.nest("Tags", |xml| {
        for (key, value) in &spec.tags {
            xml.nest("member", |xml| {
                xml.text("Key", key);
                xml.text("Value", value);
            });
        }
    });
    xml.nest("TargetGroupARNs", |xml| {
        for arn in &spec.target_groups {
            xml.text("member", arn);
        }
    });
    if spec.retains {
        xml.nest("InstanceLifecyclePolicy", |xml| {
            xml.nest("RetentionTriggers", |xml| xml.text("TerminateHookAbandon", "retain"));
        });
    }
}

fn write_hook(xml: &mut Xml, group: &str, name: &str, spec: &HookSpec, target: Option<&str>) {
    let transition =
        if spec.terminating { "autoscaling:EC2_INSTANCE_TERMINATING" } else { "autoscaling:EC2_INSTANCE_LAUNCHING" };
    xml.text("LifecycleHookName", name);
    xml.text("AutoScalingGroupName", group);
    xml.text("LifecycleTransition", transition);
    if let Some(target) = target {
        xml.text("NotificationTargetARN", target);
    }
    xml.text("HeartbeatTimeout", &spec.heartbeat_timeout.as_secs().to_string());
    xml.text("GlobalTimeout", &spec.global_timeout().as_secs().to_string());
    xml.text("DefaultResult", spec.default_result.as_str());
}

fn which(form: &Form) -> Result<Which<'_>, Refusal> {
    Ok(Which {
        group: required(form, "AutoScalingGroupName")?,
        hook: required(form, "LifecycleHookName")?,
        token: form.get("LifecycleActionToken"),
        instance: form.get("InstanceId"),
    })
}

fn required<'a>(form: &'a Form, name: &str) -> Result<&'a str, Refusal> {
    form.get(name).ok_or_else(|| {
        let message = format!("1 validation error detected: Value null at '{name}' must not be null");
        Refusal::new("ValidationError", message)
    })
}
