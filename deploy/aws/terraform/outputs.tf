output "queue_url" {
  description = "The chart's queueUrl"
  value       = aws_sqs_queue.this.url
}

output "helm_arguments" {
  description = "What helm install of the chart wants to know of this module"
  value = join(" ", concat(
    ["--namespace ${var.namespace} --create-namespace --set queueUrl=${aws_sqs_queue.this.url} --set aws.region=${local.region}"],
    ["--set serviceAccount.name=${var.service_account}"],
    var.identity == "irsa" ? ["--set 'serviceAccount.annotations.eks\\.amazonaws\\.com/role-arn=${aws_iam_role.this[0].arn}'"] : [],
  ))
}

output "queue_arn" {
  description = "The queue, for hooks that send to it by themselves"
  value       = aws_sqs_queue.this.arn
}

output "dead_letter_queue_url" {
  description = "What could not be worked on, or not be delivered"
  value       = aws_sqs_queue.dead_letters.url
}

output "region" {
  description = "The chart's aws.region"
  value       = local.region
}

output "role_arn" {
  description = "What the pods run as. With irsa, the service account's annotation eks.amazonaws.com/role-arn"
  value       = one(aws_iam_role.this[*].arn)
}

output "notification_role_arn" {
  description = "For hooks that send to the queue by themselves"
  value       = one(aws_iam_role.notification[*].arn)
}
