//! The messages in `tests/fixtures/events`, which follow the schemas that AWS documents, and damaged ones.

pub(super) const ASG_LAUNCH: &str = include_str!("../../../../tests/fixtures/events/asg-launch.json");
pub(super) const ASG_LAUNCH_DIRECT: &str = include_str!("../../../../tests/fixtures/events/asg-launch-direct.json");
pub(super) const ASG_LAUNCH_FROM_WARM_POOL: &str =
    include_str!("../../../../tests/fixtures/events/asg-launch-from-warm-pool.json");
pub(super) const ASG_NOTIFICATION: &str = include_str!("../../../../tests/fixtures/events/asg-notification.json");
pub(super) const ASG_TERMINATE: &str = include_str!("../../../../tests/fixtures/events/asg-terminate.json");
pub(super) const ASG_TERMINATE_DIRECT: &str =
    include_str!("../../../../tests/fixtures/events/asg-terminate-direct.json");
pub(super) const ASG_TERMINATE_DIRECT_SNS: &str =
    include_str!("../../../../tests/fixtures/events/asg-terminate-direct-sns.json");
pub(super) const ASG_TERMINATE_FROM_WARM_POOL: &str =
    include_str!("../../../../tests/fixtures/events/asg-terminate-from-warm-pool.json");
pub(super) const ASG_TERMINATE_SNS: &str = include_str!("../../../../tests/fixtures/events/asg-terminate-sns.json");
pub(super) const ASG_TERMINATE_TO_WARM_POOL: &str =
    include_str!("../../../../tests/fixtures/events/asg-terminate-to-warm-pool.json");
pub(super) const CAPACITY_BLOCK: &str = include_str!("../../../../tests/fixtures/events/capacity-block.json");
pub(super) const CAPACITY_RESERVATION: &str =
    include_str!("../../../../tests/fixtures/events/capacity-reservation.json");
pub(super) const HEALTH_CLOSED: &str = include_str!("../../../../tests/fixtures/events/health-closed.json");
pub(super) const HEALTH_ISSUE: &str = include_str!("../../../../tests/fixtures/events/health-issue.json");
pub(super) const HEALTH_MAINTENANCE_THREE: &str =
    include_str!("../../../../tests/fixtures/events/health-maintenance-three.json");
pub(super) const HEALTH_NO_INSTANCE: &str = include_str!("../../../../tests/fixtures/events/health-no-instance.json");
pub(super) const HEALTH_OTHER_SERVICE: &str =
    include_str!("../../../../tests/fixtures/events/health-other-service.json");
pub(super) const HEALTH_REBOOT: &str = include_str!("../../../../tests/fixtures/events/health-reboot.json");
pub(super) const HEALTH_RETIREMENT: &str = include_str!("../../../../tests/fixtures/events/health-retirement.json");
pub(super) const HEALTH_RETIREMENT_PERSISTENT: &str =
    include_str!("../../../../tests/fixtures/events/health-retirement-persistent.json");
pub(super) const HEALTH_STOP: &str = include_str!("../../../../tests/fixtures/events/health-stop.json");
pub(super) const HEALTH_TERMINATION: &str = include_str!("../../../../tests/fixtures/events/health-termination.json");
pub(super) const REBALANCE: &str = include_str!("../../../../tests/fixtures/events/rebalance.json");
pub(super) const SNS_SUBSCRIBE: &str = include_str!("../../../../tests/fixtures/events/sns-subscribe.json");
pub(super) const SNS_UNSUBSCRIBE: &str = include_str!("../../../../tests/fixtures/events/sns-unsubscribe.json");
pub(super) const SPOT: &str = include_str!("../../../../tests/fixtures/events/spot.json");
pub(super) const SPOT_HIBERNATE: &str = include_str!("../../../../tests/fixtures/events/spot-hibernate.json");
pub(super) const SPOT_SNS: &str = include_str!("../../../../tests/fixtures/events/spot-sns.json");
pub(super) const STATE_RUNNING: &str = include_str!("../../../../tests/fixtures/events/state-running.json");
pub(super) const STATE_STOPPING: &str = include_str!("../../../../tests/fixtures/events/state-stopping.json");
pub(super) const TEST_NOTIFICATION: &str = include_str!("../../../../tests/fixtures/events/test-notification.json");
pub(super) const TEST_NOTIFICATION_SNS: &str =
    include_str!("../../../../tests/fixtures/events/test-notification-sns.json");
pub(super) const UNKNOWN_TYPE: &str = include_str!("../../../../tests/fixtures/events/unknown-type.json");
pub(super) const BAD_ARRAY: &str = include_str!("../../../../tests/fixtures/events/bad-array.json");
pub(super) const BAD_DETAIL_STRING: &str = include_str!("../../../../tests/fixtures/events/bad-detail-string.json");
pub(super) const BAD_DUPLICATE_KEY: &str = include_str!("../../../../tests/fixtures/events/bad-duplicate-key.json");
pub(super) const BAD_ENTITIES: &str = include_str!("../../../../tests/fixtures/events/bad-entities.json");
pub(super) const BAD_INSTANCE_ID: &str = include_str!("../../../../tests/fixtures/events/bad-instance-id.json");
pub(super) const BAD_NO_INSTANCE: &str = include_str!("../../../../tests/fixtures/events/bad-no-instance.json");
pub(super) const BAD_NO_TOKEN: &str = include_str!("../../../../tests/fixtures/events/bad-no-token.json");
pub(super) const BAD_NULL_ID: &str = include_str!("../../../../tests/fixtures/events/bad-null-id.json");
pub(super) const BAD_SHAPE: &str = include_str!("../../../../tests/fixtures/events/bad-shape.json");
pub(super) const BAD_SNS_IN_SNS: &str = include_str!("../../../../tests/fixtures/events/bad-sns-in-sns.json");
pub(super) const BAD_SNS_TEXT: &str = include_str!("../../../../tests/fixtures/events/bad-sns-text.json");
pub(super) const BAD_STATE: &str = include_str!("../../../../tests/fixtures/events/bad-state.json");
pub(super) const BAD_TIME: &str = include_str!("../../../../tests/fixtures/events/bad-time.json");
pub(super) const BAD_TRANSITION: &str = include_str!("../../../../tests/fixtures/events/bad-transition.json");
pub(super) const BAD_TRUNCATED: &str = include_str!("../../../../tests/fixtures/events/bad-truncated.json");

/// Every fixture but the damaged ones, with its name.
pub(super) const GOOD: &[(&str, &str)] = &[
    ("asg-launch", ASG_LAUNCH),
    ("asg-launch-direct", ASG_LAUNCH_DIRECT),
    ("asg-launch-from-warm-pool", ASG_LAUNCH_FROM_WARM_POOL),
    ("asg-notification", ASG_NOTIFICATION),
    ("asg-terminate", ASG_TERMINATE),
    ("asg-terminate-direct", ASG_TERMINATE_DIRECT),
    ("asg-terminate-direct-sns", ASG_TERMINATE_DIRECT_SNS),
    ("asg-terminate-from-warm-pool", ASG_TERMINATE_FROM_WARM_POOL),
    ("asg-terminate-sns", ASG_TERMINATE_SNS),
    ("asg-terminate-to-warm-pool", ASG_TERMINATE_TO_WARM_POOL),
    ("capacity-block", CAPACITY_BLOCK),
    ("capacity-reservation", CAPACITY_RESERVATION),
    ("health-closed", HEALTH_CLOSED),
    ("health-issue", HEALTH_ISSUE),
    ("health-maintenance-three", HEALTH_MAINTENANCE_THREE),
    ("health-no-instance", HEALTH_NO_INSTANCE),
    ("health-other-service", HEALTH_OTHER_SERVICE),
    ("health-reboot", HEALTH_REBOOT),
    ("health-retirement", HEALTH_RETIREMENT),
    ("health-retirement-persistent", HEALTH_RETIREMENT_PERSISTENT),
    ("health-stop", HEALTH_STOP),
    ("health-termination", HEALTH_TERMINATION),
    ("rebalance", REBALANCE),
    ("sns-subscribe", SNS_SUBSCRIBE),
    ("sns-unsubscribe", SNS_UNSUBSCRIBE),
    ("spot", SPOT),
    ("spot-hibernate", SPOT_HIBERNATE),
    ("spot-sns", SPOT_SNS),
    ("state-running", STATE_RUNNING),
    ("state-stopping", STATE_STOPPING),
    ("test-notification", TEST_NOTIFICATION),
    ("test-notification-sns", TEST_NOTIFICATION_SNS),
    ("unknown-type", UNKNOWN_TYPE),
];

/// The damaged ones.
pub(super) const BAD: &[&str] = &[
    BAD_ARRAY,
    BAD_DETAIL_STRING,
    BAD_DUPLICATE_KEY,
    BAD_ENTITIES,
    BAD_INSTANCE_ID,
    BAD_NO_INSTANCE,
    BAD_NO_TOKEN,
    BAD_NULL_ID,
    BAD_SHAPE,
    BAD_SNS_IN_SNS,
    BAD_SNS_TEXT,
    BAD_STATE,
    BAD_TIME,
    BAD_TRANSITION,
    BAD_TRUNCATED,
];
