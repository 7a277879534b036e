//! Suggestions for the user while the sandbox is held.

use crate::paint::{Paint, Tone};
use crate::plan::{Part, Plan};
use ebbtide_sim::aws::REGION;
use ebbtide_sim::loopback::Loopback;
use std::path::PathBuf;

/// A kubeconfig file, deleted on drop.
pub struct Kubeconfig(PathBuf);

impl Kubeconfig {
    /// Writes the file.
    pub fn write(loopback: &Loopback) -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("ebbtide-sandbox-{}.kubeconfig", std::process::id()));
        std::fs::write(&path, loopback.kubeconfig())?;
        Ok(Self(path))
    }
}

impl Drop for Kubeconfig {
    fn drop(&mut self) {
        // A file that can't be deleted is harmless: it holds no secret, and its server is gone.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the addresses, and commands to copy.
pub fn what_to_try(
    plan: &Plan,
    (queue_url, admin): (&str, &str),
    loopback: &Loopback,
    kubeconfig: &std::io::Result<Kubeconfig>,
    paint: Paint,
) -> String {
    let (aws, kube) = (&loopback.aws_url, &loopback.kube_url);
    let mut parts = vec![
        String::new(),
        paint.tone(Tone::Head, "The sandbox keeps running until Ctrl-C. Commands for another terminal:"),
    ];
    let mut part = |what: &str, command: String| {
        parts.push(format!("\n  {}\n{command}", paint.tone(Tone::Faint, &format!("# {what}"))));
    };
    part(
        "the service's metrics and readiness",
        format!("  curl -s {admin}/metrics | grep ^ebbtide_\n  curl -s {admin}/readyz"),
    );
    if let Some(spared) = plan.with(Part::Spared).next() {
        part(
            &format!("a spot interruption of {}: watch it drain here", spared.name),
            format!(
                "  curl -s {aws} -H 'X-Amz-Target: AmazonSQS.SendMessage' -H 'Content-Type: application/x-amz-json-1.0' \\\n    \
                 -d '{{\"QueueUrl\":\"{queue_url}\",\"MessageBody\":\"{}\"}}'",
                spot(&spared.instance).replace('"', "\\\""),
            ),
        );
        let name = &spared.name;
        part(
            "or without the queue: a termination by its Auto Scaling group, announced on the Node",
            format!(
                "  curl -s -o /dev/null -X PATCH {kube}/api/v1/nodes/{name} -H 'Content-Type: application/merge-patch+json' \\\n    \
                 -d '{}'",
                r#"{"metadata":{"annotations":{"ebbtide/says.termination":"{\"what\":\"terminate\"}"}}}"#
            ),
        );
        part(
            "the node, its annotations and its pods",
            format!(
                "  curl -s {kube}/api/v1/nodes/{name}\n  curl -s '{kube}/api/v1/pods?fieldSelector=spec.nodeName={name}'"
            ),
        );
    }
    if let Ok(Kubeconfig(path)) = kubeconfig {
        let path = path.display();
        part(
            "a second replica on the same queue and cluster",
            format!(
                "  KUBECONFIG={path} AWS_ENDPOINT_URL={aws} AWS_REGION={REGION} \\\n    \
                 AWS_ACCESS_KEY_ID=sandbox AWS_SECRET_ACCESS_KEY=sandbox \\\n    \
                 cargo run -- run --queue-url {queue_url} --admin-address 127.0.0.1:0 --status-address off"
            ),
        );
        part(
            "the simulated API server through kubectl, without discovery",
            format!("  KUBECONFIG={path} kubectl get --raw /api/v1/nodes"),
        );
    }
    parts.push(String::new());
    parts.join("\n")
}

/// Returns a spot warning; the shell fills in the time when it sends the message.
fn spot(instance: &str) -> String {
    let parts = [
        r#"{"id":"manual","source":"aws.ec2","detail-type":"EC2 Spot Instance Interruption Warning","time":""#,
        r"'$(date -u +%FT%TZ)'",
        r#"","detail":{"instance-id":""#,
        instance,
        r#"","instance-action":"terminate"}}"#,
    ];
    parts.concat()
}
