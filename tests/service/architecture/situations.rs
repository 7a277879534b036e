//! The situations that the record of a notice and the machines must get right, each with the tests that play it. Who changes the model reads
//! these tests first.
//!
//! The states of one record and its transitions have a table of their own, in `src/pipeline/node/record/tests.rs`; those of a hook and of a
//! notice's part in a drain stand beside their machines.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Each situation, and the tests that play it.
const SITUATIONS: [(&str, &[&str]); 32] = [
    ("a spot warning while a cordon for a recommendation stands", &["another_notice_keeps_the_cordon"]),
    ("a cordon that expires", &["a_cordon_without_a_later_notice_is_removed_in_time"]),
    ("a drain that expires", &["a_mark_that_expires_stays_as_long_as_its_drain_and_the_time_after_it"]),
    (
        "a hook joined by a spot warning",
        &["a_spot_warning_hurries_the_pods_of_a_lifecycle_drain_once", "a_spot_warning_ends_the_wait_of_its_node"],
    ),
    (
        "two replicas with a hook each: each sees that the other's waits",
        &[
            "of_two_hooks_the_latest_counts_whoever_received_it",
            "the_end_of_one_replica_s_hook_is_not_that_of_the_other_s",
        ],
    ),
    (
        "the agent's notice, then its hook, then the hook's message",
        &[
            "a_hook_s_message_and_its_node_s_word_are_one_notice",
            "a_hook_that_comes_in_the_middle_of_its_node_s_drain_goes_on_with_it",
            "the_hook_s_replica_goes_on_with_what_another_began_for_the_node",
        ],
    ),
    (
        "a heartbeat that AWS does not know",
        &["an_action_that_is_over_ends_its_drain", "a_hook_that_is_over_before_its_first_heartbeat_ends_the_drain"],
    ),
    (
        "a change planned, and carried out",
        &["a_change_far_ahead_is_planned_like_that_of_a_message", "a_plan_that_a_message_brought_is_carried_out_once"],
    ),
    (
        "a change put off, before, during and after its drain",
        &[
            "a_planned_change_is_put_off_and_called_off_on_the_node",
            "a_change_that_is_put_off_during_the_drain_moves_the_deadline",
            "a_change_that_is_put_off_after_the_drain_moves_the_start_on_the_node",
            "a_listed_change_that_a_message_puts_off_during_the_drain_moves_the_deadline",
            "a_change_that_is_put_off_moves_the_deadline_of_the_other_replica_s_drain",
        ],
    ),
    (
        "a change moved after a user ended it",
        &["a_user_who_uncordons_is_not_overruled_by_a_list_nor_by_a_late_message"],
    ),
    (
        "a change called off by message while EC2's last poll still lists it",
        &["a_change_that_a_message_cancels_is_not_acted_on_from_ec2s_last_answer"],
    ),
    (
        "a change called off by message while the agent still reports it",
        &[
            "a_change_that_aws_calls_off_and_its_node_takes_back_leaves_no_mark",
            "a_change_that_is_called_off_before_a_takeover_is_released_when_its_node_takes_it_back",
        ],
    ),
    (
        "an older copy that comes last",
        &[
            "an_announcement_older_than_its_withdrawal_does_nothing",
            "an_announcement_that_comes_back_after_its_withdrawal_does_nothing",
        ],
    ),
    ("the replacement of a root volume", &["the_replacement_of_a_root_volume_drains_the_node_and_gives_it_back"]),
    (
        "into the warm pool and out of it",
        &[
            "an_instance_that_goes_back_to_the_warm_pool_says_so",
            "an_instance_from_the_warm_pool_is_released_on_the_same_boot",
            "a_restart_before_the_hook_is_completed_is_no_return_from_the_warm_pool",
            "an_instance_terminated_in_the_warm_pool_is_not_waited_for",
        ],
    ),
    (
        "a spot instance that hibernates",
        &[
            "a_hibernating_node_whose_cordon_fails_once_is_still_evicted",
            "a_copy_of_a_hibernation_that_is_over_does_not_cordon_the_node_for_good",
        ],
    ),
    (
        "an instance that is stopped, with the out-of-service taint",
        &["the_taint_waits_for_ec2s_confirmation_and_is_removed_after_the_reboot"],
    ),
    ("a kill after the cordon", &["another_replica_continues_after_a_crash", "a_takeover_in_mid_drain_goes_on"]),
    (
        "a kill between a hook's completion and its note",
        &["a_node_that_came_back_after_its_replica_was_killed_is_released"],
    ),
    (
        "a kill between the note of a replacement and its call",
        &["a_note_without_a_call_does_not_stay", "another_replica_goes_on_and_asks_no_second_time"],
    ),
    (
        "a kill in a place of a wave",
        &[
            "a_drain_that_is_taken_over_keeps_its_place_to_its_end",
            "a_place_whose_end_nobody_notes_is_free_after_its_deadline",
        ],
    ),
    (
        "a receipt lost while the work continues, and its message received elsewhere",
        &["a_hook_whose_message_has_left_a_replica_still_counts_there"],
    ),
    (
        "uncordoned once, and twice",
        &[
            "a_cordon_removed_during_the_drain_is_set_again_once",
            "two_uncordons_end_the_drains_of_both_replicas",
            "a_copy_that_comes_after_a_user_has_ended_the_drain_starts_nothing_in_another_replica",
        ],
    ),
    (
        "a zonal shift",
        &["drains_in_other_zones_wait_for_the_end_of_the_shift", "all_replicas_know_it_and_it_survives_a_restart"],
    ),
    ("a replacement asked for", &["what_one_replica_has_asked_for_no_other_takes_back"]),
    (
        "a condition that heals in mid-drain, and comes again",
        &["a_condition_that_goes_back_late_is_undone_and_may_come_again"],
    ),
    (
        "a status check that passes, and another replica's older answer",
        &[
            "a_check_drains_after_five_minutes_and_is_undone_when_it_passes",
            "replicas_with_answers_of_different_age_agree",
        ],
    ),
    (
        "a reboot, and a stop and start, before a change's start",
        &[
            "a_restart_before_its_start_leaves_the_node_cordoned_until_the_retirement",
            "a_stop_and_start_before_its_start_gives_the_node_back",
        ],
    ),
    (
        "a Node with a plan that is deleted and made again",
        &["a_planned_change_whose_node_is_deleted_is_planned_on_the_next"],
    ),
    (
        "a record that was edited, or of a later version",
        &["a_record_of_a_later_version_holds_its_node_until_a_user_ends_it"],
    ),
    (
        "blocked at a soft deadline",
        &["a_soft_deadline_never_deletes_past_a_budget", "at_deadline_leave_leaves_blocked_pods"],
    ),
    ("a Capacity Block that was extended", &["a_block_that_was_extended_is_drained_again_before_its_new_end"]),
];

#[test]
fn each_situation_has_its_tests() {
    let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/service/pipeline")];
    let mut tests = BTreeSet::new();
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let names = text.split("#[tokio::test(start_paused = true)]\nasync fn ").skip(1);
        tests.extend(names.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
    }
    let all = SITUATIONS.iter().flat_map(|(situation, names)| names.iter().map(move |name| (situation, name)));
    let missing: Vec<_> = all.filter(|(_, name)| !tests.contains(**name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}
