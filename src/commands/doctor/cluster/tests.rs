use super::*;
use crate::clients::gate::Category;
use crate::commands::doctor::Status;
use crate::commands::doctor::readings::{AgentPod, NodeInstance, ReadError, region_of};
use crate::commands::doctor::tests::{found, healthy, one, settings};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

fn labels(app: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), app.to_owned())])
}

fn budget(name: &str, app: &str, expected: i32, desired: i32) -> BudgetState {
    BudgetState {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        selector: Some(LabelSelector { match_labels: Some(labels(app)), ..LabelSelector::default() }),
        expected,
        desired,
        current: true,
    }
}

fn listed<const N: usize>(budgets: [BudgetState; N]) -> Budgets {
    Budgets { budgets: budgets.into(), complete: true }
}

#[test]
fn a_provider_id_has_instance_and_region() {
    let mut nodes = Nodes::default();
    for (name, provider) in [
        ("a", Some("aws:///eu-west-1a/i-00000000000000001")),
        ("b", Some("aws:///eu-west-1b/i-0000000a")),
        ("c", Some("aws:///us-west-2-lax-1a/i-00000000000000002")),
        ("d", Some("")),
        ("e", None),
        ("f", Some("gce://project/zone/name")),
        ("g", Some("aws:///eu-west-1a/fargate-ip-10-0-0-1.eu-west-1.compute.internal")),
    ] {
        nodes.add(name.to_owned(), provider, BTreeMap::new());
    }
    assert_eq!((nodes.instances.len(), nodes.names.join(" ")), (3, "a b c".to_owned()));
    assert_eq!(nodes.regions, ["eu-west-1", "us-west-2"]);
    for (zone, region) in [("us-gov-west-1a", "us-gov-west-1"), ("us-east-1-wl1-bos-wlz-1", "us-east-1"), ("", "")] {
        assert_eq!(region_of(zone), region);
    }
    assert_eq!(nodes.without_provider, ["d", "e"]);
    assert_eq!(nodes.foreign.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["f", "g"]);
}

#[test]
fn nodes_that_others_drain_are_named_with_the_setting_that_leaves_them_alone() {
    let add = |readings: &mut Readings| {
        let nodes = readings.nodes.as_mut().unwrap();
        for (n, labels) in [
            (2, &[("karpenter.sh/nodepool", "default")][..]),
            (3, &[("karpenter.sh/nodepool", "general-purpose"), ("eks.amazonaws.com/compute-type", "auto")]),
            (4, &[("eks.amazonaws.com/nodegroup", "blue"), ("pool", "spot")]),
            (5, &[("eks.amazonaws.com/nodegroup", "blue")]),
        ] {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            nodes.add(format!("node-{n}"), Some(&format!("aws:///eu-west-1a/i-0000000000000000{n}")), labels);
        }
    };
    let controllers = |args: &[&str]| {
        let settings = settings(args);
        let mut readings = healthy(&settings);
        add(&mut readings);
        let checks = judge(&settings, &readings);
        let one = checks.iter().find(|check| check.name == "controllers");
        one.map(|check| (check.status, check.found.clone()))
    };
    let (status, text) = controllers(&[]).unwrap();
    assert_eq!(status, Status::Ok);
    assert_eq!(
        text,
        "1 node of EKS Auto Mode, 1 node of Karpenter, 2 nodes of EKS managed node groups: that drains them, too. To leave them to it: \
         --node-selector 'eks.amazonaws.com/compute-type!=auto,!karpenter.sh/nodepool,!eks.amazonaws.com/nodegroup'"
    );
    let (_, text) = controllers(&["--node-selector", "pool=spot"]).unwrap();
    assert!(text.starts_with("1 node of EKS managed node groups: "), "{text}");
    assert!(text.ends_with("--node-selector 'pool=spot,!eks.amazonaws.com/nodegroup'"), "{text}");
    assert_eq!(controllers(&["--node-selector", "pool=none"]), None);
}

fn agents<const N: usize>(pods: [(&str, bool); N]) -> Agents {
    let pod = |node: &str, ready| AgentPod { namespace: "ebbtide".to_owned(), name: format!("agent-of-{node}"), ready };
    let by_node = pods.into_iter().map(|(node, ready)| (node.to_owned(), pod(node, ready))).collect();
    Agents { by_node, complete: true }
}

#[test]
fn each_node_needs_an_agent_that_is_ready() {
    let both = ["--source", "queue,nodes", "--pod-namespace", "ebbtide", "--pod-name", "a"];
    let second = |readings: &mut Readings| {
        readings.nodes.as_mut().unwrap().add(
            "node-1".to_owned(),
            Some("aws:///eu-west-1a/i-00000000000000002"),
            BTreeMap::new(),
        );
        readings.nodes.as_mut().unwrap().add(
            "fargate".to_owned(),
            Some("aws:///eu-west-1a/fargate-1"),
            BTreeMap::new(),
        );
    };
    let with = |pods| {
        one(&both, |readings| {
            second(readings);
            readings.agents = Some(pods);
        })
    };
    let (name, status, text) = with(Ok(agents([("node-0", true)])));
    assert_eq!((name, status), ("agents", Status::Warning));
    assert!(text.starts_with("1 node has no agent, so") && text.contains(": node-1.\n"), "{text}");
    let (_, status, text) = with(Ok(agents([("node-0", true), ("node-1", false)])));
    assert!(status == Status::Warning && text.contains("1 agent is not ready") && !text.contains("no agent"), "{text}");
    assert!(text.ends_with("kubectl -n ebbtide logs agent-of-node-1"), "{text}");
    let (_, status, text) = with(Ok(agents([("fargate", true)])));
    assert!(status == Status::Warning && text.contains("only AWS gives notices"), "{text}");
    let (_, status, text) = with(Err(ReadError::new(Category::Denied, "Not allowed to list pods.")));
    assert!(status == Status::Skipped && text.contains("allow list of pods"), "{text}");
    let (_, status, _) = with(Ok(Agents::default()));
    assert_eq!(status, Status::Skipped, "not all were listed");
    let ready = found(&both, |readings| readings.agents = Some(Ok(agents([("node-0", true)]))));
    assert_eq!(ready, Vec::new());
}

#[test]
fn without_agents_conditions_are_still_acted_on() {
    let of = |flags: &[&str]| {
        let flags = [&["--pod-namespace", "ebbtide", "--pod-name", "a"], flags].concat();
        let settings = settings(&flags);
        let readings = Readings { agents: Some(Ok(agents([]))), ..healthy(&settings) };
        let agents = judge(&settings, &readings).into_iter().find(|check| check.name == "agents").unwrap();
        (agents.status, agents.found)
    };
    let rules = ["--on-condition", "Ready=Unknown:10m=drain"];
    let nodes = ["--source", "nodes"];
    let ec2 = ["--source", "nodes,ec2", "--ec2-poll-interval", "5m"];
    let queue = ["--source", "queue,nodes"];
    let (status, text) = of(&nodes);
    assert!(status == Status::Failure && text.contains("no node is ever drained"), "{text}");
    for source in [&ec2[..], &queue] {
        let (status, text) = of(source);
        assert!(status == Status::Warning && text.contains("only AWS gives notices"), "{text}");
    }
    for (source, what) in [
        (
            &nodes[..],
            "none runs, and conditions need none: only they are acted on; what the metadata announce, such as a spot interruption, is not seen",
        ),
        (
            &ec2,
            "none runs, and conditions need none: they and what EC2 lists are acted on; what the metadata alone announce, such as a spot interruption, is not seen",
        ),
        (&queue, "none runs, and conditions need none: other notices come from AWS"),
    ] {
        assert_eq!(of(&[source, &rules].concat()), (Status::Ok, what.to_owned()), "{source:?}");
    }
}

#[test]
fn conditions_and_waves_need_a_node_that_has_them() {
    let flags = ["--source", "queue,nodes", "--pod-namespace", "ebbtide", "--pod-name", "a", "--on-condition"];
    let with = |rules, change: fn(&mut Nodes)| {
        found(&[&flags[..], &[rules]].concat(), |readings| change(readings.nodes.as_mut().unwrap()))
    };
    assert_eq!(with("Ready=Unknown:10m=drain", |_| {}), Vec::new());
    let rules = "Ready=Unknown:10m=drain,KernelRedy=False:10m=drain,KernelRedy=Unknown:1h=report";
    let missing = with(rules, |_| {});
    let [check] = missing.as_slice() else { panic!("{missing:?}") };
    assert_eq!((check.area, check.name, check.status), (Area::Cluster, "conditions", Status::Warning));
    assert_eq!(
        check.found,
        "No node has the condition KernelRedy of --on-condition: mistyped, or not written by anything."
    );
    assert!(check.remedy.as_deref().unwrap().contains("node monitoring agent"), "{check:?}");
    let two = with("A=True:10m=drain,B=True:10m=drain", |_| {});
    assert_eq!(
        two[0].found,
        "No node has the conditions A, B of --on-condition: mistyped, or not written by anything."
    );
    let unknown = with(rules, |nodes| nodes.complete = false);
    assert_eq!(
        unknown.iter().map(|check| (check.name, check.status)).collect::<Vec<_>>(),
        [("conditions", Status::Skipped)]
    );
    assert_eq!(with("Ready=Unknown:10m=drain", |nodes| nodes.complete = false), Vec::new(), "one has it");

    let waves = ["--wave", "topology.kubernetes.io/zone=1"];
    assert_eq!(found(&waves, |_| {}), Vec::new());
    let (name, status, text) = one(&["--wave", "topology.kubernetes.io/zone=1,pool=10%"], |_| {});
    assert_eq!((name, status), ("waves", Status::Warning));
    assert!(
        text.starts_with("--wave names the label pool, which no node has: no drain is held back by that.\n"),
        "{text}"
    );
    let nobody = found(&waves, |readings| readings.nodes = Ok(Nodes { complete: true, ..Nodes::default() }));
    assert!(nobody.iter().all(|check| check.name == "nodes"), "without a node that is the one fault: {nobody:?}");
}

#[test]
fn nodes_without_an_instance() {
    let (name, status, text) =
        one(&[], |readings| readings.nodes.as_mut().unwrap().add("bare".to_owned(), None, BTreeMap::new()));
    assert_eq!((name, status), ("nodes", Status::Warning));
    assert!(text.contains("1 node has no provider ID") && text.contains("bare"), "{text}");
    let foreign =
        found(&[], |readings| readings.nodes.as_mut().unwrap().add("f".to_owned(), Some("kind://x"), BTreeMap::new()));
    assert_eq!(foreign, Vec::new(), "other nodes are nothing wrong");
    let (_, status, text) = one(&[], |readings| readings.nodes = Ok(Nodes { complete: true, ..Nodes::default() }));
    assert_eq!(status, Status::Failure, "{text}");
    let (_, _, text) = one(&[], |readings| readings.nodes.as_mut().unwrap().regions = vec!["us-east-1".to_owned()]);
    assert!(text.contains("Set AWS_REGION=us-east-1"), "{text}");
}

#[test]
fn the_cluster_s_name_must_be_that_of_its_instances() {
    let (name, status, text) = one(&["--cluster-name", "green"], |_| {});
    assert_eq!((name, status), ("name", Status::Failure));
    assert!(text.contains("Set --cluster-name blue"), "{text}");
    for flags in [&[][..], &["--cluster-name", "blue"]] {
        assert_eq!(found(flags, |_| {}), Vec::new());
        assert_eq!(
            found(flags, |readings| readings.instances = Ok(vec![NodeInstance::default()])),
            Vec::new(),
            "{flags:?}"
        );
    }
}

#[test]
fn what_is_known_of_load_balancers_is_stated_where_they_are_waited_for() {
    let stated = |flags: &[&str], clusters: &[&str]| {
        let settings = settings(flags);
        let mut readings = healthy(&settings);
        let clusters = clusters.iter().map(|name| (*name).to_owned()).collect();
        readings.instances = Ok(vec![NodeInstance { clusters, ..NodeInstance::default() }]);
        let checks = judge(&settings, &readings);
        checks.into_iter().find(|check| check.name == "load-balancers").map(|check| (check.status, check.found))
    };
    let wait = "--wait-for-load-balancers=wait";
    assert_eq!(stated(&[], &["blue"]), None);
    assert_eq!(stated(&[wait, "--dry-run"], &["blue"]), None);
    let (status, text) = stated(&[wait], &["blue"]).unwrap();
    assert_eq!(status, Status::Ok);
    assert!(text.contains("by bindings, Services and Auto Scaling groups; classic"), "{text}");
    assert!(text.contains("classic load balancers are not waited for"), "{text}");
    let (_, text) = stated(&[wait, "--complete-after=30s"], &[]).unwrap();
    assert!(text.contains("not by the tags of Services, without --cluster-name; classic"), "{text}");
    assert!(text.contains("have the time of --complete-after"), "{text}");
    let (_, text) = stated(&[wait, "--cluster-name=blue"], &[]).unwrap();
    assert!(text.contains("bindings, Services"), "{text}");
}

#[test]
fn metadata_that_pods_can_read_are_reported() {
    let with = |all: Vec<Option<MetadataOptions>>| {
        move |readings: &mut Readings| {
            let instance = |(n, metadata)| NodeInstance {
                id: format!("i-0000000000000000{n}"),
                clusters: vec!["blue".to_owned()],
                metadata,
            };
            readings.instances = Ok(all.into_iter().enumerate().map(instance).collect());
        }
    };
    let options = |on, without_token, hop_limit| Some(MetadataOptions { on, without_token, hop_limit });
    for fine in [None, options(true, false, 1), options(false, true, 2), options(false, false, 64)] {
        assert_eq!(found(&[], with(vec![options(true, false, 1), fine])), Vec::new(), "{fine:?}");
    }
    for (open, why) in
        [(options(true, false, 2), "has a metadata hop limit of 2"), (options(true, true, 1), "asks for no token")]
    {
        let (name, status, text) = one(&[], with(vec![options(true, false, 1), None, open, open]));
        assert_eq!((name, status), ("hop-limit", Status::Warning));
        for part in
            ["2 of 3 nodes", "i-00000000000000002", why, "agent.hostNetwork=true", "metadata-networkpolicy.yaml"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    // Only a service that asks AWS for nothing has no other check of the call.
    let denied = |readings: &mut Readings| readings.instances = Err(ReadError::new(Category::Denied, "no right"));
    assert_eq!(found(&[], denied), Vec::new());
    let nodes = ["--source", "nodes", "--pod-namespace", "ebbtide", "--pod-name", "a"];
    let all = found(&nodes, denied);
    let check = all.iter().find(|check| check.name == "hop-limit").unwrap();
    assert!(check.status == Status::Skipped && check.found.contains("no right to describe"), "{check:?}");
    assert!(check.remedy.as_deref().unwrap().contains("aws ec2 describe-instances"), "{check:?}");
}

#[test]
fn budgets_that_can_never_be_met() {
    for (expected, desired, faults) in [(2, 2, 1), (2, 3, 1), (1, 1, 1), (2, 1, 0), (0, 0, 0), (3, 0, 0)] {
        let found = found(&[], |readings| readings.budgets = Ok(listed([budget("web", "web", expected, desired)])));
        assert_eq!(found.len(), faults, "{expected} {desired}: {found:?}");
    }
    let (name, status, text) = one(&[], |readings| readings.budgets = Ok(listed([budget("web", "web", 2, 2)])));
    assert_eq!((name, status), ("budgets", Status::Warning));
    assert!(text.contains("kubectl -n shop patch pdb web"), "{text}");
    let new = BudgetState { current: false, ..budget("web", "web", 2, 2) };
    assert_eq!(found(&[], |readings| readings.budgets = Ok(listed([new]))), Vec::new());
}

#[test]
fn two_budgets_of_one_pod_refuse_everything() {
    let (name, _, text) =
        one(&[], |readings| readings.budgets = Ok(listed([budget("one", "web", 2, 1), budget("two", "web", 2, 1)])));
    assert_eq!(name, "budgets");
    assert!(text.contains("the same pods of shop/web"), "{text}");
    let elsewhere = BudgetState { namespace: "other".to_owned(), ..budget("two", "web", 2, 1) };
    assert_eq!(
        found(&[], |readings| readings.budgets = Ok(listed([budget("one", "web", 2, 1), elsewhere]))),
        Vec::new()
    );
}

#[test]
fn workloads_without_a_budget_are_no_problem() {
    let pods_of = |pods| Workload { pods, labels: labels("web") };
    let key =
        |name: &str| PodOwner { namespace: "shop".to_owned(), kind: "ReplicaSet".to_owned(), name: name.to_owned() };
    let workloads = Workloads {
        workloads: BTreeMap::from([(key("many"), pods_of(3)), (key("one"), pods_of(1))]),
        longest_grace: None,
        complete: false,
    };
    let check = unprotected(&workloads, &listed([]));
    assert_eq!(check.status, Status::Ok);
    assert!(check.found.contains("1 workload of several pods has no budget") && check.found.contains("shop/many"));
    assert!(check.found.contains("of the pods that were listed"), "{}", check.found);
    let web = listed([budget("web", "web", 3, 2)]);
    assert!(unprotected(&workloads, &web).found.starts_with("every workload"));
    let some = unprotected(&workloads, &Budgets::default());
    assert_eq!(some.status, Status::Skipped, "a budget that was not listed may be about it");
}
