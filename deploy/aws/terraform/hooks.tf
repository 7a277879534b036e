# Lifecycle hooks, and the role that Auto Scaling assumes for hooks that notify the queue directly.

resource "aws_autoscaling_lifecycle_hook" "terminate" {
  for_each = var.hook_groups

  autoscaling_group_name  = each.value
  name                    = var.hook_name
  lifecycle_transition    = "autoscaling:EC2_INSTANCE_TERMINATING"
  heartbeat_timeout       = var.hook_heartbeat_timeout_seconds
  default_result          = var.hook_default_result
  notification_target_arn = var.hook_direct ? aws_sqs_queue.this.arn : null
  role_arn                = var.hook_direct ? aws_iam_role.notification[0].arn : null

  # Auto Scaling tests the role when the hook is created, and the queue's policy must not refuse the role then.
  depends_on = [aws_iam_role_policy.notification, aws_iam_role_policy.notification_key, aws_sqs_queue_policy.this]
}

resource "aws_autoscaling_lifecycle_hook" "launch" {
  for_each = var.hook_launch ? var.hook_groups : []

  autoscaling_group_name = each.value
  name                   = "${var.hook_name}-launch"
  lifecycle_transition   = "autoscaling:EC2_INSTANCE_LAUNCHING"
  heartbeat_timeout      = var.hook_heartbeat_timeout_seconds
  # An instance that never became Ready is replaced.
  default_result          = "ABANDON"
  notification_target_arn = var.hook_direct ? aws_sqs_queue.this.arn : null
  role_arn                = var.hook_direct ? aws_iam_role.notification[0].arn : null

  depends_on = [aws_iam_role_policy.notification, aws_iam_role_policy.notification_key, aws_sqs_queue_policy.this]
}

resource "aws_iam_role" "notification" {
  count = var.notification_role ? 1 : 0

  name_prefix = "${substr(var.name, 0, 24)}-notification-"
  description = "Lets lifecycle hooks send to the queue ${var.name}"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "AutoScaling"
      Effect    = "Allow"
      Principal = { Service = "autoscaling.amazonaws.com" }
      Action    = "sts:AssumeRole"
      # Only for groups of this account: else another account's group could send in our name.
      Condition = {
        StringEquals = { "aws:SourceAccount" = local.account }
        ArnLike      = { "aws:SourceArn" = "arn:${local.partition}:autoscaling:${local.region}:${local.account}:autoScalingGroup:*:autoScalingGroupName/*" }
      }
    }]
  })
  permissions_boundary = var.permissions_boundary_arn == "" ? null : var.permissions_boundary_arn
  tags                 = var.tags
}

resource "aws_iam_role_policy" "notification" {
  count = var.notification_role ? 1 : 0

  name = "${var.name}-notification"
  role = aws_iam_role.notification[0].name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid      = "Send"
      Effect   = "Allow"
      Action   = ["sqs:SendMessage", "sqs:GetQueueUrl"]
      Resource = aws_sqs_queue.this.arn
    }]
  })
}

resource "aws_iam_role_policy" "notification_key" {
  count = var.notification_role && local.uses_key ? 1 : 0

  name = "${var.name}-notification-key"
  role = aws_iam_role.notification[0].name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid      = "Key"
      Effect   = "Allow"
      Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
      Resource = local.key
    }]
  })
}
