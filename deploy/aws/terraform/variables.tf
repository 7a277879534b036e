variable "name" {
  description = "Prefix of all names: one name per cluster"
  type        = string
  default     = "ebbtide"

  validation {
    condition     = can(regex("^[A-Za-z0-9-]{1,40}$", var.name))
    error_message = "name may have letters, digits and hyphens, at most 40: rule names begin with it."
  }
}

variable "tags" {
  description = "Tags of all resources that support tags"
  type        = map(string)
  default     = {}
}

# Who may read the queue.

variable "identity" {
  description = "How the pods get the role: EKS Pod Identity (pod-identity), an OIDC provider (irsa), or an existing role, such as that of self-managed instances (existing-role)"
  type        = string
  default     = "pod-identity"

  validation {
    condition     = contains(["pod-identity", "irsa", "existing-role"], var.identity)
    error_message = "identity must be pod-identity, irsa or existing-role."
  }
}

variable "cluster_name" {
  description = "Name of the EKS cluster: with pod-identity binds the role to its service account; default of lifecycle_tag_key"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[A-Za-z0-9_.-]*$", var.cluster_name))
    error_message = "cluster_name must be a cluster name."
  }
}

variable "oidc_provider_arn" {
  description = "For irsa: ARN of the cluster's IAM OIDC provider"
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
  description = "For irsa: audience of the pods' tokens. EKS uses sts.amazonaws.com, kOps amazonaws.com"
  type        = string
  default     = "sts.amazonaws.com"

  validation {
    condition     = can(regex("^[A-Za-z0-9_./:-]+$", var.oidc_audience))
    error_message = "oidc_audience must be an audience, such as sts.amazonaws.com."
  }
}

variable "role_name" {
  description = "For existing-role: name (not ARN) of the role that gets the permissions"
  type        = string
  default     = ""

  validation {
    condition     = var.identity != "existing-role" || var.role_name != ""
    error_message = "identity existing-role needs role_name, the name of the role that gets the permissions."
  }
}

variable "namespace" {
  description = "Namespace of Ebbtide"
  type        = string
  default     = "ebbtide"

  validation {
    condition     = can(regex("^[a-z0-9-]{1,63}$", var.namespace))
    error_message = "namespace must be the name of a Kubernetes namespace."
  }
}

variable "service_account" {
  description = "Name of its service account"
  type        = string
  default     = "ebbtide"

  validation {
    condition     = can(regex("^[a-z0-9.-]{1,253}$", var.service_account))
    error_message = "service_account must be the name of a Kubernetes service account."
  }
}

variable "doctor_permissions" {
  description = "Permissions for `ebbtide doctor`, the checks at the start and `ebbtide simulate`"
  type        = bool
  default     = false
}

variable "ec2_polling" {
  description = "Permissions for `--ec2-poll-interval`"
  type        = bool
  default     = false
}

variable "verify" {
  description = "Permissions for `--max-draining`, which has a default, and `--verify`"
  type        = bool
  default     = true
}

variable "replace" {
  description = "Permissions for `--on KIND=replace`, for groups with the tag. Needs cluster_name"
  type        = bool
  default     = false

  validation {
    condition     = !var.replace || var.cluster_name != ""
    error_message = "replace needs cluster_name, or the role could replace instances of other clusters."
  }
}

variable "reboot" {
  description = "Permissions for the action reboot, for instances with the tag. Needs cluster_name"
  type        = bool
  default     = false

  validation {
    condition     = !var.reboot || var.cluster_name != ""
    error_message = "reboot needs cluster_name, or the role could reboot instances of other clusters."
  }
}

variable "load_balancers" {
  description = "Permissions for this `--wait-for-load-balancers`: off, wait or deregister, which needs cluster_name"
  type        = string
  default     = "off"

  validation {
    condition     = contains(["off", "wait", "deregister"], var.load_balancers)
    error_message = "load_balancers must be off, wait or deregister."
  }

  validation {
    condition     = var.load_balancers != "deregister" || var.cluster_name != ""
    error_message = "load_balancers deregister needs cluster_name, or the role could deregister targets of other clusters."
  }
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of the roles that this module creates. It must allow what the policies grant"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^$|^arn:[a-z-]+:iam::([0-9]{12}|aws):policy/.+$", var.permissions_boundary_arn))
    error_message = "permissions_boundary_arn must be the ARN of an IAM policy, arn:aws:iam::ACCOUNT:policy/NAME."
  }
}

# Which events are sent to the queue.

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
  description = "Launching instances, only for --on asg-launch=ready. Needs a lifecycle hook on each group"
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
  description = "Instances that stop or terminate, for any reason"
  type        = bool
  default     = true
}

variable "scheduled_change" {
  description = "Scheduled changes of EC2 instances, from AWS Health"
  type        = bool
  default     = true
}

variable "health_issues" {
  description = "With the scheduled changes also faults of EC2 that AWS Health reports, for --health-issue"
  type        = bool
  default     = false
}

variable "capacity_reservation" {
  description = "Interruptions of instances in capacity reservations"
  type        = bool
  default     = true
}

variable "zonal_shift" {
  description = "Zonal shifts and autoshifts, for --zonal-shift"
  type        = bool
  default     = false
}

# Lifecycle hooks.

variable "lifecycle_tag_key" {
  description = "Tag of the Auto Scaling groups whose hooks may be completed, and with reboot of the instances. Empty: kubernetes.io/cluster/CLUSTER_NAME, or without cluster_name aws-node-termination-handler/managed"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[A-Za-z0-9 _.:/=+@-]*$", var.lifecycle_tag_key))
    error_message = "lifecycle_tag_key must be a tag key."
  }
}

variable "lifecycle_tag_value" {
  description = "Value of that tag; * is any value"
  type        = string
  default     = "*"

  validation {
    condition     = can(regex("^[A-Za-z0-9 _.:/=+@*?-]+$", var.lifecycle_tag_value))
    error_message = "lifecycle_tag_value must be a tag value; * stands for any characters."
  }
}

variable "notification_role" {
  description = "Whether to create a role for lifecycle hooks that notify the queue directly, without EventBridge. Set asg_terminate and asg_launch to false for those groups; otherwise each notice comes twice"
  type        = bool
  default     = false
}

variable "hook_groups" {
  description = "Names of the Auto Scaling groups that get lifecycle hooks: those whose instances are nodes of the cluster"
  type        = set(string)
  default     = []
}

variable "hook_name" {
  description = "Name of the hooks; launch hooks append -launch"
  type        = string
  default     = "ebbtide"

  validation {
    condition     = can(regex("^[A-Za-z0-9_/-]{1,240}$", var.hook_name))
    error_message = "hook_name may have letters, digits, and _ / -."
  }
}

variable "hook_heartbeat_timeout_seconds" {
  description = "Heartbeat timeout of the hooks. For longer drains Ebbtide sends heartbeats, up to 100 timeouts and 48 hours. Without an answer an instance waits this long"
  type        = number
  default     = 300

  validation {
    condition     = var.hook_heartbeat_timeout_seconds >= 30 && var.hook_heartbeat_timeout_seconds <= 7200
    error_message = "hook_heartbeat_timeout_seconds must be between 30 and 7200."
  }
}

variable "hook_default_result" {
  description = "Result of a terminating hook without an answer. Both terminate the instance; ABANDON skips the group's other hooks, and keeps the instance if an instance lifecycle policy requires it"
  type        = string
  default     = "CONTINUE"

  validation {
    condition     = contains(["CONTINUE", "ABANDON"], var.hook_default_result)
    error_message = "hook_default_result must be CONTINUE or ABANDON."
  }
}

variable "hook_launch" {
  description = "Whether to create launch hooks, too. Set asg_launch and --on asg-launch=ready first; otherwise no instance is ever used"
  type        = bool
  default     = false
}

variable "hook_direct" {
  description = "Whether the hooks notify the queue directly, without EventBridge"
  type        = bool
  default     = false

  validation {
    condition     = !var.hook_direct || var.notification_role
    error_message = "hook_direct needs notification_role = true."
  }
}

# Who else may send to the queue.

variable "topic_arns" {
  description = "ARNs of SNS topics that may send to the queue, such as one that several clusters' queues subscribe to"
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.topic_arns : can(regex("^arn:[a-z-]+:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]+$", arn))])
    error_message = "topic_arns must be ARNs of SNS topics, arn:aws:sns:REGION:ACCOUNT:NAME."
  }
}

variable "sender_arns" {
  description = "ARNs of IAM roles and users that the queue's policy does not refuse, for `ebbtide send`, redrives and hooks with a role of their own; * stands for any characters. They need sqs:SendMessage by IAM, too. All other roles and users are refused"
  type        = list(string)
  default     = []

  # A session's ARN, arn:aws:sts::…:assumed-role/…, would match nothing: AWS compares with the role's. And …:root is the root user, not the account.
  validation {
    condition     = alltrue([for arn in var.sender_arns : can(regex("^arn:[a-z-]+:iam::[0-9]{12}:(role|user)/.+$", arn))])
    error_message = "sender_arns must be ARNs of IAM roles or users, arn:aws:iam::ACCOUNT:role/NAME; all roles of an account are arn:aws:iam::ACCOUNT:role/*."
  }
}

# The queue.

variable "encryption" {
  description = "Encryption of the queues: SQS's own key (sqs), a new KMS key (new-key), or an existing one (existing-key)"
  type        = string
  default     = "sqs"

  validation {
    condition     = contains(["sqs", "new-key", "existing-key"], var.encryption)
    error_message = "encryption must be sqs, new-key or existing-key."
  }
}

variable "kms_key_arn" {
  description = "For existing-key: ARN of the key, whose policy must allow events.amazonaws.com, see ../README.md"
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
  description = "Message retention, by default 4 days. At least 48 hours, the longest life of a lifecycle hook: an expired message loses its notice"
  type        = number
  default     = 345600

  validation {
    condition     = var.message_retention_seconds >= 172800 && var.message_retention_seconds <= 1209600
    error_message = "message_retention_seconds must be between 172800 (48 hours) and 1209600 (14 days)."
  }
}

variable "max_receive_count" {
  description = "Number of receives after which a message goes to the dead-letter queue. Each hand-over between replicas is one"
  type        = number
  default     = 10

  validation {
    condition     = var.max_receive_count >= 3 && var.max_receive_count <= 1000
    error_message = "max_receive_count must be between 3 and 1000."
  }
}

variable "alarm_topic_arn" {
  description = "SNS topic for an alarm about messages in the dead-letter queue. Empty creates no alarm"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^$|^arn:[a-z-]+:sns:[a-z0-9-]+:[0-9]{12}:.+$", var.alarm_topic_arn))
    error_message = "alarm_topic_arn must be the ARN of an SNS topic, arn:aws:sns:REGION:ACCOUNT:NAME."
  }
}
