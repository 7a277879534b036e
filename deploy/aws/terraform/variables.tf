variable "name" {
  description = "What everything is named after: one name for each cluster"
  type        = string
  default     = "ebbtide"

  validation {
    condition     = can(regex("^[A-Za-z0-9-]{1,40}$", var.name))
    error_message = "name may have letters, digits and hyphens, at most 40 of them: rules' names are made from it."
  }
}

variable "tags" {
  description = "Tags of everything that can have tags"
  type        = map(string)
  default     = {}
}

# Who may read the queue.

variable "identity" {
  description = "How the pods get the role: EKS Pod Identity (pod-identity), an OIDC provider (irsa), or a role that you have, such as that of self-managed instances (existing-role)"
  type        = string
  default     = "pod-identity"

  validation {
    condition     = contains(["pod-identity", "irsa", "existing-role"], var.identity)
    error_message = "identity must be pod-identity, irsa or existing-role."
  }
}

variable "cluster_name" {
  description = "The EKS cluster. With pod-identity the role is bound to its service account; and lifecycle_tag_key is derived from it"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]*$", var.cluster_name))
    error_message = "cluster_name must be a cluster's name."
  }
}

variable "oidc_provider_arn" {
  description = "For irsa: the cluster's IAM OIDC provider"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^$|^arn:[a-z-]+:iam::[0-9]{12}:oidc-provider/[A-Za-z0-9_./:-]+$", var.oidc_provider_arn))
    error_message = "oidc_provider_arn must be the ARN of an IAM OIDC provider, arn:aws:iam::ACCOUNT:oidc-provider/ISSUER."
  }

  validation {
    condition     = var.identity != "irsa" || var.oidc_provider_arn != ""
    error_message = "identity irsa needs oidc_provider_arn, the ARN of the cluster's IAM OIDC provider."
  }
}

variable "oidc_audience" {
  description = "For irsa: the audience of the pods' tokens. EKS uses sts.amazonaws.com, kOps amazonaws.com"
  type        = string
  default     = "sts.amazonaws.com"

  validation {
    condition     = can(regex("^[A-Za-z0-9_./:-]+$", var.oidc_audience))
    error_message = "oidc_audience must be an audience, such as sts.amazonaws.com."
  }
}

variable "role_name" {
  description = "For existing-role: the name (not the ARN) of the role that gets the permissions"
  type        = string
  default     = ""

  validation {
    condition     = var.identity != "existing-role" || var.role_name != ""
    error_message = "identity existing-role needs role_name, the name of the role that gets the permissions."
  }
}

variable "namespace" {
  description = "The namespace that Ebbtide runs in"
  type        = string
  default     = "ebbtide"

  validation {
    condition     = can(regex("^[a-z0-9-]{1,63}$", var.namespace))
    error_message = "namespace must be the name of a Kubernetes namespace."
  }
}

variable "service_account" {
  description = "The name of its service account"
  type        = string
  default     = "ebbtide"

  validation {
    condition     = can(regex("^[a-z0-9.-]{1,253}$", var.service_account))
    error_message = "service_account must be the name of a Kubernetes service account."
  }
}

variable "doctor_permissions" {
  description = "Whether the role may read what `ebbtide doctor` checks. Nothing else needs it"
  type        = bool
  default     = true
}

# Which events are sent to it.

variable "asg_terminate" {
  description = "Terminating instances of Auto Scaling groups. Needs a lifecycle hook on each group, see hook_groups"
  type        = bool
  default     = true

  validation {
    condition = anytrue([
      var.asg_terminate, var.asg_launch, var.spot, var.rebalance, var.state_change, var.scheduled_change, var.capacity_reservation,
    ])
    error_message = "At least one kind of event must be sent to the queue."
  }
}

variable "asg_launch" {
  description = "Launching instances, of use with --on asg-launch=ready only. Needs a lifecycle hook on each group"
  type        = bool
  default     = false
}

variable "spot" {
  description = "Spot interruption warnings"
  type        = bool
  default     = true
}

variable "rebalance" {
  description = "Rebalance recommendations"
  type        = bool
  default     = true
}

variable "state_change" {
  description = "Instances that stop or terminate, whoever made them"
  type        = bool
  default     = true
}

variable "scheduled_change" {
  description = "Scheduled changes of EC2 instances, from AWS Health"
  type        = bool
  default     = true
}

variable "capacity_reservation" {
  description = "Interruptions of instances in capacity reservations"
  type        = bool
  default     = true
}

# Lifecycle hooks.

variable "lifecycle_tag_key" {
  description = "Only hooks of Auto Scaling groups with this tag may be completed. Empty means kubernetes.io/cluster/CLUSTER_NAME, or without cluster_name aws-node-termination-handler/managed"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[A-Za-z0-9 _.:/=+@-]*$", var.lifecycle_tag_key))
    error_message = "lifecycle_tag_key must be a tag's key."
  }
}

variable "lifecycle_tag_value" {
  description = "The value that the tag must have; * is any"
  type        = string
  default     = "*"

  validation {
    condition     = can(regex("^[A-Za-z0-9 _.:/=+@*?-]+$", var.lifecycle_tag_value))
    error_message = "lifecycle_tag_value must be a tag's value; * stands for any characters."
  }
}

variable "notification_role" {
  description = "Whether to make a role for lifecycle hooks that send to the queue by themselves, without EventBridge. Set asg_terminate and asg_launch to false for those groups, or each notice comes twice"
  type        = bool
  default     = false
}

variable "hook_groups" {
  description = "The names of Auto Scaling groups, those whose instances are nodes of the cluster, that get lifecycle hooks"
  type        = set(string)
  default     = []
}

variable "hook_name" {
  description = "The hooks' name; launching hooks get -launch after it"
  type        = string
  default     = "ebbtide"

  validation {
    condition     = can(regex("^[A-Za-z0-9_/-]{1,240}$", var.hook_name))
    error_message = "hook_name may have letters, digits, and _ / -."
  }
}

variable "hook_heartbeat_timeout_seconds" {
  description = "How long a hook waits without a heartbeat. Ebbtide sends them for longer drains, up to 100 times this and 48 hours; but this long an instance stays if nobody answers"
  type        = number
  default     = 300

  validation {
    condition     = var.hook_heartbeat_timeout_seconds >= 30 && var.hook_heartbeat_timeout_seconds <= 7200
    error_message = "hook_heartbeat_timeout_seconds must be between 30 and 7200."
  }
}

variable "hook_default_result" {
  description = "What becomes of a terminating instance if nobody answers. Both terminate it; ABANDON skips the group's other hooks, and keeps the instance where an instance lifecycle policy says so"
  type        = string
  default     = "CONTINUE"

  validation {
    condition     = contains(["CONTINUE", "ABANDON"], var.hook_default_result)
    error_message = "hook_default_result must be CONTINUE or ABANDON."
  }
}

variable "hook_launch" {
  description = "Whether to make launching hooks, too. Set asg_launch and --on asg-launch=ready first, or no instance is ever used"
  type        = bool
  default     = false
}

variable "hook_direct" {
  description = "Whether the hooks send to the queue by themselves, without EventBridge"
  type        = bool
  default     = false

  validation {
    condition     = !var.hook_direct || var.notification_role
    error_message = "hook_direct needs notification_role = true, the role with which hooks send."
  }
}

# The queue.

variable "encryption" {
  description = "The queues' encryption by a key of SQS (sqs), by a KMS key that this module makes (new-key), or by one that you have (existing-key)"
  type        = string
  default     = "sqs"

  validation {
    condition     = contains(["sqs", "new-key", "existing-key"], var.encryption)
    error_message = "encryption must be sqs, new-key or existing-key."
  }
}

variable "kms_key_arn" {
  description = "For existing-key: the key. Its policy must let events.amazonaws.com use it, see ../README.md"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^$|^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", var.kms_key_arn))
    error_message = "kms_key_arn must be the ARN of a KMS key (not of an alias), arn:aws:kms:REGION:ACCOUNT:key/ID."
  }

  validation {
    condition     = var.encryption != "existing-key" || var.kms_key_arn != ""
    error_message = "encryption existing-key needs kms_key_arn, the ARN of the key."
  }
}

variable "message_retention_seconds" {
  description = "How long the queue keeps a message; 4 days. At least 48 hours, for which a lifecycle hook can wait: the notice goes with its message"
  type        = number
  default     = 345600

  validation {
    condition     = var.message_retention_seconds >= 172800 && var.message_retention_seconds <= 1209600
    error_message = "message_retention_seconds must be between 172800 (48 hours) and 1209600 (14 days)."
  }
}

variable "max_receive_count" {
  description = "After so many receives a message goes to the dead-letter queue. Each hand-over between replicas is one"
  type        = number
  default     = 10

  validation {
    condition     = var.max_receive_count >= 3 && var.max_receive_count <= 1000
    error_message = "max_receive_count must be between 3 and 1000."
  }
}
