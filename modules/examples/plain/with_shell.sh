#!/bin/sh
# A program that takes part with nothing but the `kite` command: it hears orders and bills each of them.
# Run by kite or from a terminal: the command finds the instance by itself, and speaks as an operator.
#   ./with_shell.sh [HOW_MANY]
set -eu

many=${1:-}
kite sub orders.created ${many:+--count "$many"} --json | while read -r event; do
    # the order's own JSON goes on as it came
    order=$(printf '%s' "$event" | sed 's/.*"data": //; s/}$//')
    kite pub bills.created "{\"order\":$order}" --json
done
