// Moves between registers, special registers, and conversions.
#include <cstring>

#include "gpusim/convert.h"
#include "gpusim/decode.h"
#include "gpusim/decode/decoder.h"
#include "gpusim/move.h"

namespace teon::gpusim {

namespace {

const Names<Special> kSpecials = {{"%tid.x", Special::tid_x},
                                  {"%tid.y", Special::tid_y},
                                  {"%tid.z", Special::tid_z},
                                  {"%ntid.x", Special::ntid_x},
                                  {"%ntid.y", Special::ntid_y},
                                  {"%ntid.z", Special::ntid_z},
                                  {"%ctaid.x", Special::ctaid_x},
                                  {"%ctaid.y", Special::ctaid_y},
                                  {"%ctaid.z", Special::ctaid_z},
                                  {"%nctaid.x", Special::nctaid_x},
                                  {"%nctaid.y", Special::nctaid_y},
                                  {"%nctaid.z", Special::nctaid_z},
                                  {"%laneid", Special::laneid},
                                  {"%warpid", Special::warpid},
                                  {"%lanemask_lt", Special::lanemask_lt},
                                  {"%lanemask_le", Special::lanemask_le},
                                  {"%lanemask_gt", Special::lanemask_gt},
                                  {"%lanemask_ge", Special::lanemask_ge},
                                  {"%lanemask_eq", Special::lanemask_eq},
                                  {"%dynamic_smem_size", Special::dynamic_smem_size},
                                  {"%cluster_ctaid.x", Special::cluster_ctaid_x},
                                  {"%cluster_ctaid.y", Special::cluster_ctaid_y},
                                  {"%cluster_ctaid.z", Special::cluster_ctaid_z},
                                  {"%cluster_nctaid.x", Special::cluster_nctaid_x},
                                  {"%cluster_nctaid.y", Special::cluster_nctaid_y},
                                  {"%cluster_nctaid.z", Special::cluster_nctaid_z},
                                  {"%cluster_ctarank", Special::cluster_ctarank},
                                  {"%cluster_nctarank", Special::cluster_nctarank},
                                  {"%clusterid.x", Special::clusterid_x},
                                  {"%clusterid.y", Special::clusterid_y},
                                  {"%clusterid.z", Special::clusterid_z},
                                  {"%nclusterid.x", Special::nclusterid_x},
                                  {"%nclusterid.y", Special::nclusterid_y},
                                  {"%nclusterid.z", Special::nclusterid_z},
                                  {"%smid", Special::smid},
                                  {"%nsmid", Special::nsmid},
                                  {"%clock", Special::clock},
                                  {"%clock_hi", Special::clock_high},
                                  {"%clock64", Special::clock},
                                  {"%envreg1", Special::grid_barrier_high},
                                  {"%envreg2", Special::grid_barrier_low},
                                  {"%globaltimer", Special::clock}};

}  // namespace

void Decoder::move() {
    need_operands(2, 2);
    Instruction& i = instruction_;
    const int bytes = bytes_of_type(parts_.back());
    if (const auto it = kSpecials.find(op(1)); it != kSpecials.end()) {
        i.run = &move_special;
        i.variant = static_cast<uint8_t>(it->second);
        i.width = static_cast<uint8_t>(bytes);
        exact(op(0), bytes);
        return emit(1);
    }
    const bool splits = op(0)[0] == '{';
    const bool joins = op(1)[0] == '{';
    if (!splits && !joins) return table_row();
    const auto count = split_operands((splits ? op(0) : op(1)).substr(1)).size();
    const int part = bytes / static_cast<int>(count);
    i.run = splits ? &split : &join;
    i.bytes = static_cast<uint8_t>(part);
    if (joins) exact(op(0), bytes);
    list(splits ? op(0) : op(1), part);
    if (splits) exact(op(1), bytes);
    i.width = static_cast<uint8_t>(bytes);
    emit(splits ? static_cast<int>(count) : 1);
}

// Registers of integers may be wider than the type; convert_width converts these.
void Decoder::convert() {
    const auto it = instruction_table().find(std::string(statement_->opcode));
    const std::string_view to = parts_[parts_.size() - 2];
    const std::string_view from = parts_.back();
    if (parts_.size() == 3 && std::strchr("us", to[0]) && std::strchr("us", from[0])) {
        const int d = operand(op(0), bytes_of_type(to));
        const int a = operand(op(1), bytes_of_type(from));
        if (it != instruction_table().end() && d == it->second.bytes[0] && a == it->second.bytes[1]) {
            instruction_.run = it->second.run;
        } else {
            instruction_.run = &convert_width;
            instruction_.bytes = static_cast<uint8_t>(bytes_of_type(from));
            instruction_.vector = static_cast<uint8_t>(bytes_of_type(to));
            instruction_.sign = from[0] == 's';
            instruction_.variant = to[0] == 's';
            instruction_.width = static_cast<uint8_t>(d);
            instruction_.address_width = static_cast<uint8_t>(a);
        }
        return emit(1);
    }
    table_row();
}

}  // namespace teon::gpusim
