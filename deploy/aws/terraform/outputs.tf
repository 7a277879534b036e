output "queue_url" {
  description = "Chart value queueUrl"
  value       = aws_sqs_queue.this.url
}

output "helm_values" {
  description = "Values of the chart, as YAML"
  value = yamlencode({
    queueUrl = aws_sqs_queue.this.url
    aws      = { region = local.region }
    serviceAccount = merge(
      { name = var.service_account },
      var.identity == "irsa" ? { annotations = { "eks.amazonaws.com/role-arn" = aws_iam_role.this[0].arn } } : {},
    )
  })
}

output "queue_arn" {
  description = "ARN of the queue, for hooks that notify it directly"
  value       = aws_sqs_queue.this.arn
}

output "dead_letter_queue_url" {
  description = "URL of the dead-letter queue"
  value       = aws_sqs_queue.dead_letters.url
}

output "region" {
  description = "Chart value aws.region"
  value       = local.region
}

output "role_arn" {
  description = "Role of the pods. With irsa, the service account's annotation eks.amazonaws.com/role-arn"
  value       = one(aws_iam_role.this[*].arn)
}

output "notification_role_arn" {
  description = "Role of hooks that notify the queue directly"
  value       = one(aws_iam_role.notification[*].arn)
}
