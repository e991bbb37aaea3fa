# What a Packer of 1.7 or later does not have built in. Once: packer init images/plugins.pkr.hcl
# Debian's 1.6.6 has both built in and does not know this block, so it is in a file that the lab does not pass to it.
packer {
  required_plugins {
    qemu = {
      source  = "github.com/hashicorp/qemu"
      version = ">= 1.0.0"
    }
    ansible = {
      source  = "github.com/hashicorp/ansible"
      version = ">= 1.0.0"
    }
  }
}
