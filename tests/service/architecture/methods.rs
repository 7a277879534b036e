//! Types stay small, over however many files their `impl` blocks are spread.

use super::sources::Library;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of inherent functions of a type, including methods; tests and implementations of traits are not counted. All but five types
/// are below it, and each of those five has grown a new special case several times.
const LIMIT: usize = 25;

/// Types above the limit, and the numbers of their functions. Lower a number when its type shrinks; never raise one.
const LARGE_TYPES: [(&str, usize); 4] = [
    ("cli::settings::problems::Problems", 45),
    ("pipeline::interruption::Case", 97),
    ("pipeline::interruption::policy::Policy", 26),
    ("pipeline::node::index::Index", 33),
];

#[test]
fn no_type_has_more_than_25_functions() {
    let wrong = deviations(&Library::read().functions(), &LARGE_TYPES.into());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns where the numbers of functions differ from the limit and from the list of large types.
fn deviations(functions: &BTreeMap<String, usize>, large: &BTreeMap<&str, usize>) -> Vec<String> {
    let names: BTreeSet<&str> = functions.keys().map(String::as_str).chain(large.keys().copied()).collect();
    let deviation = |name: &str| {
        let count = functions.get(name).copied().unwrap_or_default();
        match large.get(name) {
            None if count > LIMIT => {
                Some(format!("{name} has {count} functions, at most {LIMIT} are allowed: split it"))
            }
            Some(listed) if count > *listed => {
                Some(format!("{name} has grown from {listed} to {count} functions: split it"))
            }
            Some(_) if count <= LIMIT => Some(format!("{name} has {count} functions: remove it from LARGE_TYPES")),
            Some(listed) if count < *listed => {
                Some(format!("{name} has {count} functions: lower its number in LARGE_TYPES from {listed} to {count}"))
            }
            _ => None,
        }
    };
    names.into_iter().filter_map(deviation).collect()
}

#[test]
fn a_type_that_grows_is_an_error_and_so_is_a_number_that_is_out_of_date() {
    let functions = [("grown", 31), ("same", 30), ("smaller", 29), ("small", 25), ("new", 26), ("usual", 25)];
    let functions = functions.map(|(name, count)| (name.to_owned(), count)).into();
    let large = ["grown", "same", "smaller", "small", "gone"].map(|name| (name, 30)).into();
    let expected = [
        "gone has 0 functions: remove it from LARGE_TYPES",
        "grown has grown from 30 to 31 functions: split it",
        "new has 26 functions, at most 25 are allowed: split it",
        "small has 25 functions: remove it from LARGE_TYPES",
        "smaller has 29 functions: lower its number in LARGE_TYPES from 30 to 29",
    ];
    assert_eq!(deviations(&functions, &large), expected);
}
