terraform {
  # For validations that refer to other variables.
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source = "hashicorp/aws"
      # For the association of EKS Pod Identity.
      version = ">= 5.31"
    }
  }
}
