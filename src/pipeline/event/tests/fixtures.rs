//! The messages in `tests/fixtures/events`, which follow the schemas that AWS documents, and damaged ones.

pub(super) const ASG_LAUNCH: &str = include_str!("../../../../tests/fixtures/events/asg-launch.json");
pub(super) const ASG_LAUNCH_DIRECT: &str = include_str!("../../../../tests/fixtures/events/asg-launch-direct.json");
pub(super) const ASG_LAUNCH_FROM_WARM_POOL: &str =
    include_str!("../../../../tests/fixtures/events/asg-launch-from-warm-pool.json");
pub(super) const ASG_LAUNCH_ROOT_VOLUME: &str =
    include_str!("../../../../tests/fixtures/events/asg-launch-root-volume.json");
pub(super) const ASG_NOTIFICATION: &str = include_str!("../../../../tests/fixtures/events/asg-notification.json");
pub(super) const ASG_TERMINATE: &str = include_str!("../../../../tests/fixtures/events/asg-terminate.json");
pub(super) const ASG_TERMINATE_DIRECT: &str =
    include_str!("../../../../tests/fixtures/events/asg-terminate-direct.json");
pub(super) const ASG_TERMINATE_DIRECT_SNS: &str =
    include_str!("../../../../tests/fixtures/events/asg-terminate-direct-sns.json");
pub(super) const ASG_TERMINATE_FROM_WARM_POOL: &str =
    include_str!("../../../../tests/fixtures/events/asg-terminate-from-warm-pool.json");
pub(super) const ASG_TERMINATE_ROOT_VOLUME: &str =
    include_str!("../../../../tests/fixtures/events/asg-terminate-root-volume.json");
pub(super) const ASG_TERMINATE_SNS: &str = include_str!("../../../../tests/fixtures/events/asg-terminate-sns.json");
pub(super) const ASG_TERMINATE_TO_WARM_POOL: &str =
    include_str!("../../../../tests/fixtures/events/asg-terminate-to-warm-pool.json");
pub(super) const CAPACITY_BLOCK: &str = include_str!("../../../../tests/fixtures/events/capacity-block.json");
pub(super) const CAPACITY_BLOCK_EXPIRATION: &str =
    include_str!("../../../../tests/fixtures/events/capacity-block-expiration.json");
pub(super) const CAPACITY_BLOCK_EXPIRATION_OLD_NAME: &str =
    include_str!("../../../../tests/fixtures/events/capacity-block-expiration-old-name.json");
pub(super) const CAPACITY_RESERVATION: &str =
    include_str!("../../../../tests/fixtures/events/capacity-reservation.json");
pub(super) const FLEET_LAUNCHED: &str = include_str!("../../../../tests/fixtures/events/fleet-launched.json");
pub(super) const FLEET_TERMINATION: &str = include_str!("../../../../tests/fixtures/events/fleet-termination.json");
pub(super) const HEALTH_CLOSED: &str = include_str!("../../../../tests/fixtures/events/health-closed.json");
pub(super) const HEALTH_ISSUE: &str = include_str!("../../../../tests/fixtures/events/health-issue.json");
pub(super) const HEALTH_MAINTENANCE_THREE: &str =
    include_str!("../../../../tests/fixtures/events/health-maintenance-three.json");
pub(super) const HEALTH_NO_INSTANCE: &str = include_str!("../../../../tests/fixtures/events/health-no-instance.json");
pub(super) const HEALTH_OTHER_SERVICE: &str =
    include_str!("../../../../tests/fixtures/events/health-other-service.json");
pub(super) const HEALTH_REBOOT: &str = include_str!("../../../../tests/fixtures/events/health-reboot.json");
pub(super) const HEALTH_RETIREMENT_ARN: &str =
    include_str!("../../../../tests/fixtures/events/health-retirement-arn.json");
pub(super) const HEALTH_RETIREMENT: &str = include_str!("../../../../tests/fixtures/events/health-retirement.json");
pub(super) const HEALTH_RETIREMENT_PERSISTENT: &str =
    include_str!("../../../../tests/fixtures/events/health-retirement-persistent.json");
pub(super) const HEALTH_STOP: &str = include_str!("../../../../tests/fixtures/events/health-stop.json");
pub(super) const HEALTH_TERMINATION: &str = include_str!("../../../../tests/fixtures/events/health-termination.json");
pub(super) const REBALANCE: &str = include_str!("../../../../tests/fixtures/events/rebalance.json");
pub(super) const REBALANCE_RECOMMENDED: &str =
    include_str!("../../../../tests/fixtures/events/rebalance-recommended.json");
pub(super) const SNS_SUBSCRIBE: &str = include_str!("../../../../tests/fixtures/events/sns-subscribe.json");
pub(super) const SNS_UNSUBSCRIBE: &str = include_str!("../../../../tests/fixtures/events/sns-unsubscribe.json");
pub(super) const SPOT: &str = include_str!("../../../../tests/fixtures/events/spot.json");
pub(super) const SPOT_FLEET_TERMINATION: &str =
    include_str!("../../../../tests/fixtures/events/spot-fleet-termination.json");
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
