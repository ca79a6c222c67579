#!/bin/busybox sh
# The guest's first program. What it is to do follows at the end of this file.
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
tmp=/tmp

# Binds the function at this address to vfio-pci; if a driver has it, it is unbound first.
rebind() {
  function=/sys/bus/pci/devices/$1
  if [ -e "$function/driver" ]; then
    echo "$1" > "$function/driver/unbind"
  fi
  echo vfio-pci > "$function/driver_override"
  echo "$1" > /sys/bus/pci/drivers_probe
  echo "vm: $1, $(cat "$function/vendor") $(cat "$function/device"), IOMMU group" \
    "$(basename "$(readlink "$function/iommu_group")"), is bound to $(basename "$(readlink "$function/driver")")"
}

# Starts a program with its arguments.
first=1
last=0
start() {
  last=$((last + 1))
  echo "vm: run $*"
  {
    "$@" < /dev/null > "$tmp/out.$last" 2>&1
    echo $? > "$tmp/code.$last"
  } &
}

# Waits for all that were started, and tells how they ended.
settle() {
  wait
  while [ "$first" -le "$last" ]; do
    cat "$tmp/out.$first"
    echo "vm: ended with $(cat "$tmp/code.$first")"
    first=$((first + 1))
  done
}

# Resets the function at this address, whoever has it open.
reset_function() {
  if echo 1 > "/sys/bus/pci/devices/$1/reset"; then
    echo "vm: $1 was reset"
  fi
}

finish() {
  echo "vm: the guest ends after $(cut -d ' ' -f 1 /proc/uptime) s"
  poweroff -f
}

for module in /modules/*.ko; do
  insmod "$module" || echo "vm: cannot load $module"
done
echo "vm: $(uname -sr), ready after $(cut -d ' ' -f 1 /proc/uptime) s"
