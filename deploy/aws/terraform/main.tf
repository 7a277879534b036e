data "aws_caller_identity" "this" {}
data "aws_partition" "this" {}
data "aws_region" "this" {}

locals {
  partition = data.aws_partition.this.partition
  region    = data.aws_region.this.id
  account   = data.aws_caller_identity.this.account_id

  makes_role = var.identity != "existing-role"
  role       = local.makes_role ? aws_iam_role.this[0].name : var.role_name

  uses_key = var.encryption != "sqs"
  key      = var.encryption == "new-key" ? aws_kms_key.this[0].arn : local.uses_key ? var.kms_key_arn : null

  rule_arns = [for rule in aws_cloudwatch_event_rule.this : rule.arn]

  # The patterns are those of docs/events.md.
  rules = { for kind, rule in {
    "asg-terminate" = {
      wanted      = var.asg_terminate
      description = "Terminating instances of Auto Scaling groups"
      pattern = {
        source      = ["aws.autoscaling"]
        detail-type = ["EC2 Instance-terminate Lifecycle Action"]
      }
    }
    "asg-launch" = {
      wanted      = var.asg_launch
      description = "Launching instances of Auto Scaling groups"
      pattern = {
        source      = ["aws.autoscaling"]
        detail-type = ["EC2 Instance-launch Lifecycle Action"]
      }
    }
    "spot" = {
      wanted      = var.spot
      description = "Spot interruption warnings"
      pattern = {
        # A fleet that shrinks interrupts its instances.
        source = ["aws.ec2", "aws.ec2fleet", "aws.ec2spotfleet"]
        detail-type = [
          "EC2 Spot Instance Interruption Warning",
          "EC2 Fleet Instance Change",
          "EC2 Spot Fleet Instance Change",
        ]
      }
    }
    "rebalance" = {
      wanted      = var.rebalance
      description = "Rebalance recommendations"
      pattern = {
        source = ["aws.ec2"]
        # EventBridge lists both names.
        detail-type = ["EC2 Instance Rebalance Recommendation", "EC2 Spot Instance Rebalance Recommended"]
      }
    }
    "state-change" = {
      wanted      = var.state_change
      description = "Instances that stop or terminate"
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["EC2 Instance State-change Notification"]
        detail      = { state = ["stopping", "stopped", "shutting-down", "terminated"] }
      }
    }
    "scheduled-change" = {
      wanted      = var.scheduled_change
      description = "Scheduled changes of EC2 instances"
      pattern = {
        source      = ["aws.health"]
        detail-type = ["AWS Health Event"]
        detail = {
          service           = ["EC2"]
          eventTypeCategory = var.health_issues ? ["scheduledChange", "issue"] : ["scheduledChange"]
        }
      }
    }
    "capacity-reservation" = {
      wanted      = var.capacity_reservation
      description = "Interruptions of instances in capacity reservations"
      pattern = {
        source = ["aws.ec2"]
        # AWS documents both names.
        detail-type = [
          "EC2 Capacity Reservation Instance Interruption Warning",
          "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
          "Capacity Block Expiration Warning",
          "Capacity Block Reservation Expiration Warning",
        ]
      }
    }
    "zonal-shift" = {
      wanted      = var.zonal_shift
      description = "Zonal shifts and autoshifts, without practice runs"
      pattern = {
        source = ["aws.arc-zonal-shift"]
        detail-type = [
          "Autoshift In Progress",
          "Autoshift Completed",
          "FIS Experiment Autoshift In Progress",
          "FIS Experiment Autoshift Completed",
          "FIS Experiment Autoshift Canceled",
          "Manual Shift Started",
          "Manual Shift Updated",
          "Manual Shift Canceled",
        ]
      }
    }
  } : kind => rule if rule.wanted }
}

# The queue.

resource "aws_sqs_queue" "this" {
  name                      = var.name
  message_retention_seconds = var.message_retention_seconds
  # For users who read the queue manually; Ebbtide's receives set both.
  visibility_timeout_seconds = 30
  receive_wait_time_seconds  = 20
  sqs_managed_sse_enabled    = local.uses_key ? null : true
  kms_master_key_id          = local.key
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = var.max_receive_count
  })
  tags = var.tags
}

resource "aws_sqs_queue" "dead_letters" {
  name = "${var.name}-dead-letters"
  # SQS's maximum: a dead letter's age counts from its first sending.
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = local.uses_key ? null : true
  kms_master_key_id         = local.key
  tags                      = var.tags
}

# A dead letter is a notice that was not acted on.
resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  count = var.alarm_topic_arn == "" ? 0 : 1

  alarm_name          = "${var.name}-dead-letters"
  alarm_description   = "Messages that Ebbtide could not handle are in ${var.name}-dead-letters"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead_letters.name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  threshold           = 0
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [var.alarm_topic_arn]
  tags                = var.tags
}

# By default any queue of the account may name this one for its dead letters, and SQS asks no queue policy when it moves them.
resource "aws_sqs_queue_redrive_allow_policy" "this" {
  queue_url            = aws_sqs_queue.this.url
  redrive_allow_policy = jsonencode({ redrivePermission = "denyAll" })
}

resource "aws_sqs_queue_redrive_allow_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.url
  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.this.arn]
  })
}

# EventBridge sends undelivered events to the dead-letter queue. SQS's own moves need no permission; AWS does not document as whom
# SQS makes them, so its policy denies nothing that could stop them.
resource "aws_sqs_queue_policy" "this" {
  for_each = {
    queue        = aws_sqs_queue.this
    dead_letters = aws_sqs_queue.dead_letters
  }

  queue_url = each.value.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [{
        Sid       = "EventBridge"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = each.value.arn
        Condition = { ArnEquals = { "aws:SourceArn" = local.rule_arns } }
      }],
      each.key == "queue" && length(var.topic_arns) > 0 ? [{
        Sid       = "Topics"
        Effect    = "Allow"
        Principal = { Service = "sns.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = each.value.arn
        Condition = { ArnEquals = { "aws:SourceArn" = var.topic_arns } }
      }] : [],
      # Refuses senders with IAM permissions alone. All conditions of the statement must hold, and a negated one holds when the request lacks
      # the key: EventBridge and SNS give aws:SourceArn; all others must be listed roles or users. For a session, as Auto
      # Scaling has one of the notification role, aws:PrincipalArn is the role's ARN.
      each.key == "queue" ? [{
        Sid       = "OnlyTheseSenders"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:SendMessage"
        Resource  = each.value.arn
        Condition = merge(
          { ArnNotEquals = merge(
            { "aws:SourceArn" = local.rule_arns },
            var.notification_role ? { "aws:PrincipalArn" = [aws_iam_role.notification[0].arn] } : {},
          ) },
          length(var.topic_arns) + length(var.sender_arns) == 0 ? {} : { ArnNotLike = merge(
            length(var.topic_arns) > 0 ? { "aws:SourceArn" = var.topic_arns } : {},
            length(var.sender_arns) > 0 ? { "aws:PrincipalArn" = var.sender_arns } : {},
          ) },
        )
      }] : [],
      [{
        Sid       = "OnlyWithTls"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = each.value.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      }],
    )
  })
}

resource "aws_kms_key" "this" {
  count = var.encryption == "new-key" ? 1 : 0

  description         = "Encrypts the queues of ${var.name}"
  enable_key_rotation = true
  # Remaining messages can't be read without the key.
  deletion_window_in_days = 30
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      # Without this statement IAM policies have no effect on the key, and this policy could not be changed.
      {
        Sid       = "Account"
        Effect    = "Allow"
        Principal = { AWS = "arn:${local.partition}:iam::${local.account}:root" }
        Action    = "kms:*"
        Resource  = "*"
      },
      # AWS documents no condition for a queue's key. The queue's policy restricts the rules.
      {
        Sid       = "EventBridge"
        Effect    = "Allow"
        Principal = { Service = concat(["events.amazonaws.com"], length(var.topic_arns) > 0 ? ["sns.amazonaws.com"] : []) }
        Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource  = "*"
      },
    ]
  })
  tags = var.tags
}

# The rules. EventBridge's default retries, 24 hours, do no harm: Ebbtide recognizes late notices. Undelivered events go to the
# dead-letter queue, with the reason.

resource "aws_cloudwatch_event_rule" "this" {
  for_each = local.rules

  name          = "${var.name}-${each.key}"
  description   = each.value.description
  event_pattern = jsonencode(each.value.pattern)
  tags          = var.tags
}

resource "aws_cloudwatch_event_target" "this" {
  for_each = local.rules

  rule      = aws_cloudwatch_event_rule.this[each.key].name
  target_id = "queue"
  arn       = aws_sqs_queue.this.arn

  dead_letter_config {
    arn = aws_sqs_queue.dead_letters.arn
  }
}
