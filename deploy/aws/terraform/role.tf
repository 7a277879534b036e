# The role, with one policy per optional part.

locals {
  issuer = var.oidc_provider_arn == "" ? "" : split(":oidc-provider/", var.oidc_provider_arn)[1]

  trust = {
    irsa = {
      Sid       = "Irsa"
      Effect    = "Allow"
      Principal = { Federated = var.oidc_provider_arn }
      Action    = ["sts:AssumeRoleWithWebIdentity"]
      Condition = { StringEquals = {
        "${local.issuer}:aud" = var.oidc_audience
        "${local.issuer}:sub" = "system:serviceaccount:${var.namespace}:${var.service_account}"
      } }
    }
    pod-identity = {
      Sid       = "PodIdentity"
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      # Session tags set by Pod Identity.
      Condition = { StringEquals = merge(
        {
          "aws:RequestTag/kubernetes-namespace"       = var.namespace
          "aws:RequestTag/kubernetes-service-account" = var.service_account
        },
        var.cluster_name == "" ? {} : { "aws:RequestTag/eks-cluster-name" = var.cluster_name },
      ) }
    }
  }

  tag_key = coalesce(
    var.lifecycle_tag_key,
    var.cluster_name == "" ? "aws-node-termination-handler/managed" : "kubernetes.io/cluster/${var.cluster_name}",
  )

  service_statements = [
    {
      Sid      = "Messages"
      Effect   = "Allow"
      Action   = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"]
      Resource = aws_sqs_queue.this.arn
    },
    # These actions can't be restricted to a resource.
    {
      Sid      = "Look"
      Effect   = "Allow"
      Action   = ["autoscaling:DescribeLifecycleHooks", "ec2:DescribeInstances"]
      Resource = "*"
    },
  ]

  lifecycle_statements = [{
    Sid       = "LifecycleActions"
    Effect    = "Allow"
    Action    = ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"]
    Resource  = "arn:${local.partition}:autoscaling:${local.region}:${local.account}:autoScalingGroup:*:autoScalingGroupName/*"
    Condition = { StringLike = { "aws:ResourceTag/${local.tag_key}" = var.lifecycle_tag_value } }
  }]

  key_statements = [{
    Sid      = "Key"
    Effect   = "Allow"
    Action   = "kms:Decrypt"
    Resource = local.key
  }]

  # These actions can't be restricted to a resource.
  polling_statements = [{
    Sid      = "Polling"
    Effect   = "Allow"
    Action   = ["ec2:DescribeInstanceStatus", "ec2:DescribeCapacityReservations"]
    Resource = "*"
  }]

  # These actions can't be restricted to a resource.
  verify_statements = [{
    Sid    = "Verify"
    Effect = "Allow"
    Action = [
      "ec2:DescribeSpotInstanceRequests",
      "ec2:DescribeInstanceStatus",
      "ec2:DescribeCapacityReservations",
      "autoscaling:DescribeAutoScalingInstances",
    ]
    Resource = "*"
  }]

  # Describing can't be restricted to a resource.
  replace_statements = [
    {
      Sid       = "Replace"
      Effect    = "Allow"
      Action    = "autoscaling:SetInstanceHealth"
      Resource  = "arn:${local.partition}:autoscaling:${local.region}:${local.account}:autoScalingGroup:*:autoScalingGroupName/*"
      Condition = { StringLike = { "aws:ResourceTag/${local.tag_key}" = var.lifecycle_tag_value } }
    },
    {
      Sid      = "ReplaceLook"
      Effect   = "Allow"
      Action   = "autoscaling:DescribeAutoScalingGroups"
      Resource = "*"
    },
  ]

  reboot_statements = [{
    Sid       = "Reboot"
    Effect    = "Allow"
    Action    = "ec2:RebootInstances"
    Resource  = "arn:${local.partition}:ec2:${local.region}:${local.account}:instance/*"
    Condition = { StringLike = { "aws:ResourceTag/${local.tag_key}" = var.lifecycle_tag_value } }
  }]

  # These actions can't be restricted to a resource.
  load_balancers_statements = [{
    Sid    = "LoadBalancers"
    Effect = "Allow"
    Action = [
      "autoscaling:DescribeAutoScalingGroups",
      "elasticloadbalancing:DescribeTargetGroups",
      "elasticloadbalancing:DescribeTags",
      "elasticloadbalancing:DescribeTargetHealth",
    ]
    Resource = "*"
  }]

  # Target groups of the AWS Load Balancer Controller and of the cloud provider's Services, and those with the tag of the groups whose hooks
  # may be completed.
  target_groups = "arn:${local.partition}:elasticloadbalancing:${local.region}:${local.account}:targetgroup/*"
  deregistration_statements = [
    {
      Sid      = "Members"
      Effect   = "Allow"
      Action   = "autoscaling:DescribeAutoScalingInstances"
      Resource = "*"
    },
    {
      Sid       = "ControllersTargets"
      Effect    = "Allow"
      Action    = "elasticloadbalancing:DeregisterTargets"
      Resource  = local.target_groups
      Condition = { StringEquals = { "aws:ResourceTag/elbv2.k8s.aws/cluster" = var.cluster_name } }
    },
    {
      Sid      = "ServicesTargets"
      Effect   = "Allow"
      Action   = "elasticloadbalancing:DeregisterTargets"
      Resource = local.target_groups
      Condition = {
        StringEquals = { "aws:ResourceTag/kubernetes.io/cluster/${var.cluster_name}" = "owned" }
        Null         = { "aws:ResourceTag/kubernetes.io/service-name" = "false" }
      }
    },
    {
      Sid       = "Targets"
      Effect    = "Allow"
      Action    = "elasticloadbalancing:DeregisterTargets"
      Resource  = local.target_groups
      Condition = { StringLike = { "aws:ResourceTag/${local.tag_key}" = var.lifecycle_tag_value } }
    },
  ]

  doctor_statements = [
    {
      Sid      = "DoctorQueues"
      Effect   = "Allow"
      Action   = "sqs:GetQueueAttributes"
      Resource = [aws_sqs_queue.this.arn, aws_sqs_queue.dead_letters.arn]
    },
    {
      Sid      = "DoctorRules"
      Effect   = "Allow"
      Action   = "events:DescribeRule"
      Resource = "arn:${local.partition}:events:${local.region}:${local.account}:rule/*"
    },
    # These actions can't be restricted to a resource.
    {
      Sid    = "DoctorLook"
      Effect = "Allow"
      Action = [
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeAutoScalingInstances",
        "autoscaling:DescribeLifecycleHooks",
        "events:ListRuleNamesByTarget",
        "events:TestEventPattern",
      ]
      Resource = "*"
    },
  ]
}

resource "aws_iam_role" "this" {
  count = local.makes_role ? 1 : 0

  name_prefix          = "${substr(var.name, 0, 37)}-"
  description          = "Permissions of Ebbtide with the queue ${var.name}"
  assume_role_policy   = jsonencode({ Version = "2012-10-17", Statement = [local.trust[var.identity]] })
  permissions_boundary = var.permissions_boundary_arn == "" ? null : var.permissions_boundary_arn
  tags                 = var.tags
}

resource "aws_eks_pod_identity_association" "this" {
  count = var.identity == "pod-identity" && var.cluster_name != "" ? 1 : 0

  cluster_name    = var.cluster_name
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = aws_iam_role.this[0].arn
  tags            = var.tags
}

resource "aws_iam_role_policy" "service" {
  name   = "${var.name}-service"
  role   = local.role
  policy = jsonencode({ Version = "2012-10-17", Statement = local.service_statements })
}

resource "aws_iam_role_policy" "lifecycle" {
  name   = "${var.name}-lifecycle"
  role   = local.role
  policy = jsonencode({ Version = "2012-10-17", Statement = local.lifecycle_statements })
}

resource "aws_iam_role_policy" "key" {
  count = local.uses_key ? 1 : 0

  name   = "${var.name}-key"
  role   = local.role
  policy = jsonencode({ Version = "2012-10-17", Statement = local.key_statements })
}

resource "aws_iam_role_policy" "polling" {
  count = var.ec2_polling ? 1 : 0

  name   = "${var.name}-polling"
  role   = local.role
  policy = jsonencode({ Version = "2012-10-17", Statement = local.polling_statements })
}

resource "aws_iam_role_policy" "verify" {
  count = var.verify ? 1 : 0

  name   = "${var.name}-verify"
  role   = local.role
  policy = jsonencode({ Version = "2012-10-17", Statement = local.verify_statements })
}

resource "aws_iam_role_policy" "replace" {
  count = var.replace ? 1 : 0

  name   = "${var.name}-replace"
  role   = local.role
  policy = jsonencode({ Version = "2012-10-17", Statement = local.replace_statements })
}

resource "aws_iam_role_policy" "reboot" {
  count = var.reboot ? 1 : 0

  name   = "${var.name}-reboot"
  role   = local.role
  policy = jsonencode({ Version = "2012-10-17", Statement = local.reboot_statements })
}

resource "aws_iam_role_policy" "load_balancers" {
  count = var.load_balancers == "off" ? 0 : 1

  name   = "${var.name}-load-balancers"
  role   = local.role
  policy = jsonencode({ Version = "2012-10-17", Statement = local.load_balancers_statements })
}

resource "aws_iam_role_policy" "deregistration" {
  count = var.load_balancers == "deregister" ? 1 : 0

  name   = "${var.name}-deregistration"
  role   = local.role
  policy = jsonencode({ Version = "2012-10-17", Statement = local.deregistration_statements })
}

resource "aws_iam_role_policy" "doctor" {
  count = var.doctor_permissions ? 1 : 0

  name   = "${var.name}-doctor"
  role   = local.role
  policy = jsonencode({ Version = "2012-10-17", Statement = local.doctor_statements })
}
