/*
 * The protocols as the units above them see them: tables of commands for the dispatcher (scmi.c), and the checked
 * requests that a FastChannel (fast_channel.c) makes without a message.
 */
#ifndef SCMI_PROTOCOLS_H
#define SCMI_PROTOCOLS_H

#include "scmi_service.h"

extern const struct protocol_table scmi_base, scmi_system, scmi_performance, scmi_clock, scmi_sensor, scmi_powercap,
    scmi_telemetry;

int32_t scmi_set_level(struct scmi *s, int agent, uint32_t domain, uint32_t level);
int32_t scmi_set_limits(struct scmi *s, int agent, uint32_t domain, uint32_t max, uint32_t min);
int32_t scmi_set_cap(struct scmi *s, int agent, uint32_t power_domain, uint32_t cap_mw);
int32_t scmi_set_pai(struct scmi *s, int agent, uint32_t power_domain, uint32_t pai_us);

#endif
