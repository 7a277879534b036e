//! The table, and what holds for all values files. `tests/fixtures/migrate/cases.txt` has the literal conversions.

use super::*;
use crate::cli::Cli;
use clap::Parser;
use pods::NTH;
use std::collections::BTreeMap;
use std::fmt::Write;
use table::Case;

/// Returns the values without their head, the remarks without the last, which every queue has, and whether all was carried over.
fn migrated(text: &str) -> (String, String, bool) {
    let migration = convert(text).unwrap();
    let values = migration.values.strip_prefix(HEAD).expect("it must begin so").to_owned();
    let said = migration.to_string();
    let new = format!("New:\n  queueURL: {SENDERS}\n");
    let rest = said.strip_suffix(&new);
    assert_eq!(rest.is_some(), values.contains("queueUrl: "), "{said}");
    (values, rest.unwrap_or(&said).to_owned(), migration.is_whole())
}

#[track_caller]
fn becomes(given: &str, values: &str, remarks: &str) {
    let (found, text, whole) = migrated(given);
    assert_eq!(found, values);
    assert_eq!(text, remarks);
    let expected = remarks.lines().filter(|line| !line.starts_with(' ')).all(|title| title == "Not needed:");
    assert_eq!(whole, expected);
}

/// The values of queue mode alone.
const QUEUE: &str = "\
queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/nth  # queueURL
actions:
  asgLaunch: ready  # NTH completes launch hooks; Ebbtide's default is to ignore them
  rebalance: drain  # NTH drains in queue mode; Ebbtide's default is cordon
settings:
  requireTag: true  # NTH's default; Ebbtide's is false, which saves calls to EC2
  atDeadline: leave  # NTH leaves pods that a budget protects; Ebbtide's default deletes them in time for their grace period
";

const GIVEN: &str =
    "enableSqsTerminationDraining: true\nqueueURL: https://sqs.eu-west-1.amazonaws.com/123456789012/nth\n";

/// Returns the effect of a value in queue mode: the further lines, and the remarks.
fn one(more: &str) -> (String, String) {
    let (values, remarks, _) = migrated(&format!("{GIVEN}{more}\n"));
    let new: Vec<&str> = values.lines().filter(|line| !QUEUE.contains(&format!("{line}\n"))).collect();
    (new.join("\n"), remarks)
}

#[test]
fn the_shortest_file_that_works() {
    becomes(GIVEN, QUEUE, "");
}

#[test]
fn the_defaults_of_nths_chart_change_nothing() {
    let fixture = include_str!("../../../tests/fixtures/nth/values.tsv");
    let mut file = GIVEN.to_owned();
    let mut group = "";
    for (key, default) in fixture.lines().map(|line| line.split_once('\t').unwrap()) {
        let (above, name) = key.split_once('.').unwrap_or(("", key));
        if above != group && !above.is_empty() {
            writeln!(file, "{above}:").unwrap();
        }
        group = above;
        if !["enableSqsTerminationDraining", "queueURL"].contains(&key) {
            writeln!(file, "{}{name}: {default}", if above.is_empty() { "" } else { "  " }).unwrap();
        }
    }
    assert!(file.lines().count() > 100, "{file}");
    becomes(&file, QUEUE, "");
}

/// Values that must be null, or our chart's defaults would apply.
#[test]
fn resources_know_the_defaults_of_our_chart() {
    let ours: Value = serde_saphyr::from_str(include_str!("../../../deploy/helm/ebbtide/values.yaml")).unwrap();
    let parts = ours["resources"].as_object().unwrap();
    let found: Vec<(&str, Vec<&str>)> = parts
        .iter()
        .map(|(part, names)| (&**part, names.as_object().unwrap().keys().map(|key| &**key).collect()))
        .collect();
    let mut known = pods::RESOURCES.map(|(part, names)| (part, names.to_vec()));
    known.sort();
    assert_eq!(found, known);
}

#[test]
fn each_error_is_one_sentence() {
    let bomb = (1..9).fold("a0: &a0 [1,1,1,1,1,1,1,1,1]\n".to_owned(), |bomb, n| {
        format!("{bomb}a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(","))
    });
    let deep = (0..100).fold(String::new(), |deep, n| deep + &"  ".repeat(n) + "k:\n");
    let wide = format!("a: [{}]", "1,".repeat(50_000));
    let table = [
        ("just words", "is not a map of values"),
        ("", "is empty or null: did the command before it fail,"),
        (" \n\n", "is empty or null: did the command before it fail,"),
        ("# nothing\n---\n", "is empty or null: did the command before it fail,"),
        ("null\n", "is empty or null: did the command before it fail,"),
        ("--- null\n--- ~\n", "is empty or null: did the command before it fail,"),
        (
            "a: {b: 1}\nglobal: {}",
            "has a, which NTH's chart does not have, and no value that only NTH's chart has; give",
        ),
        ("image: {}\nplatform: {nth: {queueURL: x}}", "has platform, which NTH's chart does not have, and"),
        ("a: {queueURL: x}\nb: {taintNode: true}", "has NTH's values under a and under b; give"),
        ("apiVersion: v1\nkind: ConfigMap", "is of kind ConfigMap and does not show NTH's values: "),
        ("apiVersion: apps/v1\nkind: Deployment", "is of kind Deployment and does not show NTH's values: "),
        ("apiVersion: v1\nkind: List\nitems: []", "has several objects, 0 of them with NTH's values; give"),
        ("- a\n- b", "is not a map of values"),
        ("a: 1\na: 2", "has a twice, the second time on line 2; remove one"),
        ("a: 1\n---\nb: 2", "has several objects, 0 of them with NTH's values; give one"),
        ("a: 1\n---\n# nothing\n---\nb: 2", "has several objects, 0 of them with NTH's values; give one"),
        ("a: 1\n---\n{\"a\": [", "is not valid YAML: "),
        ("{\"a\": [", "is not valid YAML: "),
        ("a: *b", "is not valid YAML: "),
        ("a: .inf", "is not valid YAML: "),
        ("\u{0}", "is not valid YAML: "),
        (&bomb, "is deeper or larger than any values file"),
        (&deep, "is deeper or larger than any values file"),
        (&wide, "is deeper or larger than any values file"),
        (&"[".repeat(100_000), "is "),
    ];
    for (given, expected) in table {
        let what = convert(given).unwrap_err().to_string();
        let shown: String = given.chars().take(40).collect();
        assert!(what.starts_with(expected), "{shown}: {what}");
        assert!(what.lines().count() == 1 && what.len() < 300, "{shown}: {what}");
    }
}

#[test]
fn numbers_are_what_helm_takes_them_for() {
    let table = [
        ("010", "8"),
        ("-010", "-8"),
        ("0600", "384"),
        ("089", "89"),
        ("0o10", "8"),
        ("0x10", "16"),
        ("0b11", "3"),
        ("1_000", "1000"),
        ("1e3", "1000"),
        ("10.0", "10"),
        (".5", "0.5"),
        ("0", "0"),
        ("yes", "true"),
        ("Off", "false"),
        ("y", "true"),
    ];
    for (given, text) in table {
        let (values, remarks) = one(&format!("podAnnotations: {{k: {given}}}"));
        assert_eq!((values, remarks), (format!("podAnnotations:  # podAnnotations\n  k: \"{text}\""), String::new()));
    }
    assert_eq!(one("podAnnotations: {k: ~}"), (String::new(), String::new()));
    let octal = one("nodeTerminationGracePeriod: 0600");
    assert_eq!(octal.0, "  drainTimeout:\n    all: 384s  # nodeTerminationGracePeriod");
    assert_eq!(one("replicas: 1e1").0, "replicaCount: 10  # replicas");
}

/// A file may begin and end with a line between documents.
#[test]
fn documents_that_are_empty_are_none() {
    for given in [format!("---\n{GIVEN}---\n"), format!("{GIVEN}---\n# nothing\n---\n"), format!("{GIVEN}...\n")] {
        becomes(&given, QUEUE, "");
    }
}

#[test]
fn ambiguous_words_are_quoted() {
    let written = |text: &str| {
        let (values, _) = one(&format!("podAnnotations: {{k: {}}}", Value::from(text)));
        let read: Value = serde_saphyr::from_str(&values).unwrap();
        assert_eq!(read["podAnnotations"]["k"], text, "{values}");
        values.strip_prefix("podAnnotations:  # podAnnotations\n  k: ").expect("it must be the only value").to_owned()
    };
    let words = [
        "yes",
        "No",
        "ON",
        "null",
        "~",
        "1e3",
        "0x1f",
        "12:30:45",
        "a: b",
        "a #b",
        "*a",
        "-",
        "",
        "=",
        "a:",
        "0o7",
        "1_000",
        "2026-11-27",
        "!a",
        "&a",
        "%a",
        "@a",
        "`a",
        "a\nb",
    ];
    for text in words {
        assert!(written(text).starts_with(['"', '\'']), "{text}");
    }
    for text in ["ü", "5m", "50m", "done+failed", "/metrics", "a b"] {
        assert_eq!(written(text), text);
    }
    let (values, _) = one("podAnnotations: {\"on\": a, \"1\": b, \"x y\": \"c\\nd\"}");
    assert_eq!(values, "podAnnotations:  # podAnnotations\n  \"1\": b\n  \"on\": a\n  x y: \"c\\nd\"");
}

/// YAML reads a name of more than 1,024 characters only after a sign.
#[test]
fn a_long_name_is_read_as_it_was() {
    let name = "n".repeat(1_100);
    for value in ["v", "{a: b}"] {
        let (values, _) = one(&format!("affinity: {{? {name} : {value}}}"));
        let read: Value = serde_saphyr::from_str(&values).unwrap();
        let wanted = if value == "v" { Value::from(value) } else { serde_json::json!({ "a": "b" }) };
        assert_eq!(read["affinity"][&name], wanted, "{values}");
    }
}

#[test]
fn the_table_has_every_value_of_nths_chart() {
    let fixture = include_str!("../../../tests/fixtures/nth/values.tsv");
    let facts = fixture.lines().map(|line| line.split_once('\t').unwrap());
    let facts: BTreeMap<&str, Value> = facts.map(|(key, json)| (key, serde_json::from_str(json).unwrap())).collect();
    let rows: BTreeMap<&str, Value> = table().rows().map(|row| (&*row.nth, row.default.clone())).collect();
    assert_eq!(rows, facts);
    assert_eq!(rows.len(), table().rows().count(), "none twice");
    let named = |row: &Row| -> Vec<String> {
        let cases = row.cases.iter().flat_map(|case| [&case.on, &case.from_value].into_iter().flatten());
        row.only_with.iter().chain(&row.unless).chain(cases).cloned().collect()
    };
    for row in table().rows() {
        assert!(!(row.ours.is_empty() && row.remark.is_empty()), "{}: no value of ours, and no reason", row.nth);
        assert!(named(row).iter().all(|key| rows.contains_key(&**key)), "{}: {:?}", row.nth, named(row));
        let known = |case: &Case| matches!(case.topic, Topic::Lost | Topic::Needless | Topic::Differs);
        assert!(row.cases.iter().all(known), "{}: a topic of no case", row.nth);
        let silent = row.cases.iter().any(|case| case.text.is_none() && row.remark.is_empty());
        assert!(!silent, "{}: a case without a remark", row.nth);
    }
}

/// A value that our chart leaves to the user, as null, or an empty map, may have any names below it.
#[test]
fn the_table_sets_values_that_our_chart_has() {
    let ours: Value = serde_saphyr::from_str(include_str!("../../../deploy/helm/ebbtide/values.yaml")).unwrap();
    let set = table().rows().flat_map(|row| &row.ours).chain(table().kept.iter().map(|kept| &kept.ours));
    for path in set.chain(&table().order) {
        let mut level = Some(&ours);
        for part in path.split('.') {
            level =
                level.filter(|level| !is_empty(level)).map(|level| level.get(part).unwrap_or_else(|| panic!("{path}")));
        }
        let first = path.split('.').next().unwrap_or_default();
        assert!(table().order.iter().any(|known| known == first), "{first} has no place");
    }
}

#[test]
fn the_shortest_interval_of_heartbeats_is_the_services() {
    for (seconds, is_taken) in [(4, false), (5, true)] {
        let service = Cli::try_parse_from(["ebbtide", "run", &format!("--heartbeat={seconds}s")]);
        assert_eq!(service.is_ok(), is_taken, "{:?}", service.err());
        let (_, remarks) = one(&format!("heartbeatInterval: {seconds}"));
        assert_eq!(remarks.is_empty(), is_taken, "{remarks}");
    }
}

#[test]
fn the_values_go_into_a_new_file_and_strict_decides_the_exit_code() {
    let folder = std::env::temp_dir().join(format!("ebbtide-migrate-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (nth, ours) = (folder.join("nth.yaml"), folder.join("ebbtide.yaml"));
    fs::write(&nth, format!("{GIVEN}unknown: 1\n")).unwrap();
    let asked = |output: Option<&std::path::Path>, strict| {
        run(&Migrate { values: Some(nth.clone()), output_file: output.map(Into::into), strict })
    };
    let (lax, strict) = (asked(None, false), asked(None, true));
    assert_eq!((lax.code, strict.code), (0, 3));
    assert!(lax.remarks.contains("unknown:") && lax.output == strict.output, "{}", lax.remarks);
    assert!(!convert(&format!("{GIVEN}taintNode: true\n")).unwrap().is_whole(), "it differs");
    assert!(convert(&format!("{GIVEN}workers: 5\n")).unwrap().is_whole(), "it is not needed");
    let written = asked(Some(&ours), false);
    assert_eq!((written.code, written.output.as_str(), &written.remarks), (0, "", &lax.remarks));
    assert_eq!(fs::read_to_string(&ours).unwrap(), lax.output);
    let again = asked(Some(&ours), false);
    assert!(
        again.code == 1 && again.problems.contains("give --output-file another name"),
        "what somebody has edited stays: {}",
        again.problems
    );
    // What a failed command leaves in the pipe or in the file.
    fs::write(&nth, "\n").unwrap();
    fs::remove_file(&ours).unwrap();
    let nothing = asked(Some(&ours), false);
    assert!(
        nothing.code == 2 && nothing.problems.contains("nth.yaml: is empty or null: did the command"),
        "{}",
        nothing.problems
    );
    assert!(!ours.exists(), "the next try needs its place");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_name_with_a_dot_is_no_map_in_a_map() {
    let (_, said, is_whole) = migrated("enableSqsTerminationDraining: true\nrbac.create: false\n");
    assert!(said.contains("rbac.create: is one name with a dot") && !is_whole, "{said}");
}

/// What `kubectl get deployment --output yaml`, a manifest, Argo CD, Flux, an umbrella and `helm get values` have is the same set-up.
#[test]
fn each_form_has_the_same_values() {
    let plain = "enableSqsTerminationDraining: true\nqueueURL: https://sqs.eu-west-1.amazonaws.com/123456789012/nth\nmetadataTries: 5\nreplicas: 2\ntaintNode: true\n";
    let (expected, ..) = migrated(plain);
    let indented = |by: usize| {
        let lines: Vec<_> = plain.lines().map(|line| format!("{}{line}\n", " ".repeat(by))).collect();
        lines.concat()
    };
    let pod = "
      nodeSelector: {kubernetes.io/os: linux}
      dnsPolicy: ClusterFirst
      containers:
      - name: aws-node-termination-handler
        image: public.ecr.aws/aws-ec2/aws-node-termination-handler:v1.25.6";
    let head = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: aws-node-termination-handler}\nspec:\n  replicas: 2\n  template:\n    spec:";
    let variables = format!(
        "{head}{pod}
        env:
        - {{name: NODE_NAME, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}
        - {{name: ENABLE_SQS_TERMINATION_DRAINING, value: \"true\"}}
        - {{name: QUEUE_URL, value: https://sqs.eu-west-1.amazonaws.com/123456789012/nth}}
        - {{name: METADATA_TRIES, value: \"5\"}}
        - {{name: WEBHOOK_URL, value: \"\"}}
        - {{name: TAINT_NODE, value: \"true\"}}
"
    );
    let arguments = format!(
        "{head}{pod}
        args: [--enable-sqs-termination-draining, --queue-url=https://sqs.eu-west-1.amazonaws.com/123456789012/nth, --metadata-tries, \"5\", --taint-node=true]
"
    );
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: aws-node-termination-handler}\n";
    let manifest = format!("---\n{account}---\n{variables}");
    let listed = |(n, line): (usize, &str)| format!("{} {line}\n", if n == 0 { "-" } else { " " });
    let list = variables.lines().enumerate().map(listed).collect::<Vec<_>>().concat();
    let release = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec:\n  values:\n";
    let application = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec:\n  source:\n    chart: aws-node-termination-handler\n    helm:\n";
    let sources = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec:\n  sources:\n  - ref: values\n  - chart: aws-node-termination-handler\n    helm:\n      parameters:\n      - {name: replicas, value: \"2\"}\n      - {name: metadataTries, value: \"5\"}\n      values: |\n";
    let rest = "enableSqsTerminationDraining: true\n        queueURL: https://sqs.eu-west-1.amazonaws.com/123456789012/nth\n        taintNode: true\n        replicas: 7\n";
    let forms = [
        format!("USER-SUPPLIED VALUES:\n{plain}"),
        format!("{release}{}", indented(4)),
        format!("{application}      valuesObject:\n{}", indented(8)),
        format!("{application}      values: |\n{}", indented(8)),
        format!("{sources}        {rest}"),
        variables.clone(),
        arguments,
        manifest,
        format!("apiVersion: v1\nkind: List\nitems:\n{list}"),
    ];
    for form in forms {
        let Ok(found) = convert(&form) else { panic!("{}\n{form}", convert(&form).unwrap_err()) };
        assert_eq!(found.values.strip_prefix(HEAD), Some(&*expected), "{form}");
    }
}

/// What an object does not show is said, and nothing is taken for values that are not there.
#[test]
fn what_a_form_does_not_show_is_said() {
    let remarks = |text: &str| convert(text).unwrap().to_string();
    let daemons = "
apiVersion: apps/v1
kind: DaemonSet
spec:
  template:
    spec:
      serviceAccountName: nth
      hostNetwork: true
      priorityClassName: system-node-critical
      imagePullSecrets: [{name: registry}]
      containers:
      - {name: proxy, image: envoy}
      - name: handler
        image: mirror.example/aws-node-termination-handler:v1
        env:
        - {name: WEBHOOK_URL, valueFrom: {secretKeyRef: {name: hook, key: webhookurl}}}
        - {name: HTTPS_PROXY, value: http://proxy.example:3128}
";
    let found = convert(daemons).unwrap();
    for expected in ["existingSecret: hook", "name: HTTPS_PROXY", "source: [nodes]", "name: registry"] {
        assert!(found.values.contains(expected), "{expected}: {}", found.values);
    }
    assert!(found.to_string().contains("serviceAccount: the object shows its name, nth, not its role"), "{found}");
    let release = |spec: &str| format!("apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec: {spec}");
    let application =
        |source: &str| format!("apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec: {{source: {source}}}");
    let chart = "chart: aws-node-termination-handler";
    let deployment = format!(
        "{}\n        envFrom: [{{configMapRef: {{name: c}}}}]",
        daemons.trim().replace("DaemonSet", "Deployment")
    );
    // What is not read may say the mode.
    for object in [
        release("{valuesFrom: [{kind: ConfigMap, name: v}]}"),
        release("{values: {taintNode: true}, chart: {spec: {valuesFiles: [a.yaml]}}}"),
        application("{helm: {valueFiles: [a.yaml]}}"),
        application(&format!("{{{chart}, helm: {{valueFiles: [a.yaml]}}}}")),
        application(&format!("{{{chart}, helm: {{fileParameters: [{{name: a, path: b}}]}}}}")),
        application("{helm: {values: \"a: 1\"}}"),
        deployment,
    ] {
        let error = convert(&object).expect_err(&object).to_string();
        assert!(
            error.contains(" and does not show NTH's values: files and objects that it names are not read"),
            "{error}"
        );
    }
    let queue = "values: {enableSqsTerminationDraining: true}";
    assert!(
        remarks(&release(&format!("{{valuesFrom: [{{kind: Secret}}], {queue}}}")))
            .contains("spec.valuesFrom: names what is not read")
    );
    let files = application("{helm: {valueFiles: [a.yaml], valuesObject: {enableSqsTerminationDraining: true}}}");
    assert!(remarks(&files).contains("spec.source.helm.valueFiles: names what is not read"));
    // NTH's chart with its defaults, and with what it ignores.
    assert!(convert(&application(&format!("{{{chart}}}"))).is_ok());
    let odd = application(&format!("{{{chart}, helm: {{values: \"a: 1\", parameters: [{{name: a.b, value: c}}]}}}}"));
    assert!(remarks(&odd).contains("a: is unknown"), "a parameter below a value that is no map");
    // As in Argo CD, an object replaces the text.
    let both =
        application(&format!("{{{chart}, helm: {{values: \"taintNode: true\", valuesObject: {{replicas: 2}}}}}}"));
    assert!(!convert(&both).unwrap().values.contains("taint"));
}

/// They are for a parent chart again, and without its lines those of the chart alone.
#[test]
fn values_of_a_parent_chart_stay_in_it() {
    let flat = convert(GIVEN).unwrap().values;
    let indented = format!("  {}\n", GIVEN.trim_end().replace('\n', "\n  "));
    let release = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec:\n  values:\n    nth:\n";
    for (form, name) in [
        (format!("aws-node-termination-handler:\n{indented}  enabled: true\nglobal: {{}}\n"), NTH),
        (
            format!("image: {{tag: v1}}\nother: {{image: {{}}, enabled: true}}\nnth:\n{indented}  enabled: true\n"),
            "nth",
        ),
        (format!("{release}      enabled: true\n{}", indented.replace("  ", "      ")), "nth"),
    ] {
        let found = convert(&form).unwrap();
        let alone: Vec<_> = found.values.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        let expected: Vec<_> = flat.strip_prefix(HEAD).unwrap().lines().collect();
        assert_eq!(alone[2..], expected, "{form}");
        assert_eq!(alone[0], "enabled: true  # enabled");
        assert!(found.values.starts_with(&format!("{HEAD}{NESTED}ebbtide:\n  enabled: true")), "{}", found.values);
        assert!(found.to_string().contains(&format!("New:\n  {name}: {PARENT}\n")), "{found}");
        assert!(!found.to_string().contains("unknown"), "{found}");
    }
}

/// A typing error there would make an umbrella's values those of NTH, or NTH's chart those of another.
#[test]
fn a_shared_name_is_one_of_nths() {
    let names: Vec<&str> = table().rows().filter_map(|row| row.nth.split('.').next()).collect();
    let unknown: Vec<_> = table().shared.iter().filter(|shared| !names.contains(&shared.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    for theirs in ["image: {}", "serviceAccount: {create: true}\nreplicas: 2", "affinity: {}"] {
        assert!(convert(&format!("other:\n  {}", theirs.replace('\n', "\n  "))).is_err(), "{theirs}");
        assert!(convert(theirs).is_ok(), "{theirs}");
    }
}
