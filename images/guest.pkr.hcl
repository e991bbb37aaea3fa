# The guest image: a base disk, booted with its own kernel straight from the host, put in order by
# Ansible. lab.py image build fills in the variables. Debian's Packer 1.6.6 has builder and provisioner
# built in; later ones get them once by `packer init images/plugins.pkr.hcl`. There is no required_plugins
# block here, which 1.6.6 would refuse.

variable "base" { type = string }             # qcow2 or raw disk to start from; never written
variable "out" { type = string }              # folder that Packer creates for the finished disk
variable "accelerator" { type = string }      # kvm or tcg
variable "cpu" { type = string }              # QEMU's -cpu
variable "boot" { type = list(list(string)) } # further QEMU arguments: kernel or cloud-init
variable "http" { type = string }             # folder served to cloud-init ("": none)
variable "ssh_key" { type = string }
variable "playbook" { type = string }
variable "ansible" { type = string }      # ansible-playbook of the lab's environment
variable "ansible_vars" { type = string } # JSON
variable "timeout" { type = string }

source "qemu" "guest" {
  iso_url          = var.base
  iso_checksum     = "none"
  disk_image       = true
  format           = "qcow2"
  skip_resize_disk = true
  skip_compaction  = true
  output_directory = var.out
  vm_name          = "disk.qcow2"

  accelerator    = var.accelerator
  headless       = true
  boot_wait      = "1s"
  cpus           = 2
  memory         = 2048
  disk_interface = "virtio"
  net_device     = "virtio-net"
  qemuargs       = concat([["-cpu", var.cpu]], var.boot)
  http_directory = var.http

  ssh_username         = "root"
  ssh_private_key_file = var.ssh_key
  ssh_timeout          = var.timeout
  # A cloud image's sshd answers a minute before cloud-init has put the key there; ten refusals are Packer's default.
  ssh_handshake_attempts = 1000
  shutdown_command       = "systemctl poweroff"
}

build {
  sources = ["source.qemu.guest"]

  provisioner "ansible" {
    command         = var.ansible
    playbook_file   = var.playbook
    user            = "root"
    use_proxy       = false
    extra_arguments = ["--extra-vars", var.ansible_vars, "--scp-extra-args", "'-O'"]
    ansible_env_vars = [
      "ANSIBLE_HOST_KEY_CHECKING=False", "ANSIBLE_PIPELINING=True", "ANSIBLE_NOCOLOR=True",
      "ANSIBLE_SSH_USETTY=False", # on a terminal, what a script says of its failure is output
      "ANSIBLE_SSH_ARGS=-o ControlMaster=auto -o ControlPersist=120s -o UserKnownHostsFile=/dev/null",
    ]
  }
}
