// MEMCPY (docs/isa.md): between memory and the context's lines.
//
// All of it is one stream: lines come, from memory as beats, from sixteen multipliers as an embedding, or from on-chip memory, and
// wait in a queue of four, each with the line that it goes to; behind the queue a register gives them to on-chip memory, or to
// memory with the strobes of what is written. Of on-chip memory is read only what the queue has room for.
//
// Keys and values go by pieces of 32 channels, or by whole lines where a head has an even number of pieces: then both sides
// begin at a line.
module npu_mem
  import npu_pkg::*;
  import npu_unit_pkg::*;
(
  input  logic                        clk_i,
  input  logic                        rst_ni,
  // A word.
  input  logic                        start_i,
  /* verilator lint_off UNUSEDSIGNAL */
  input  npu_op_t                     op_i,
  /* verilator lint_on UNUSEDSIGNAL */
  output logic                        idle_o,
  output logic                        done_o,
  output logic [3:0]                  end_o,          // npu_end_t
  // Of the step.
  input  logic [31:0]                 token_i,
  input  logic [31:0]                 position_i,
  input  logic [15:0]                 output_lines_i, // of the output region

  // On-chip memory.
  output logic                        read_valid_o,
  output logic [CHIP_BITS-1:0]        read_line_o,
  input  logic                        read_ready_i,
  input  logic                        read_answer_i,
  input  logic [LINE_BITS-1:0]        read_data_i,
  output logic                        write_valid_o,
  output logic [CHIP_BITS-1:0]        write_line_o,
  output logic [LINE_BITS-1:0]        write_data_o,
  input  logic                        write_ready_i,

  // Model memory.
  output logic                        fetch_valid_o,
  output logic [MEMORY_BITS-1:0]      fetch_line_o,
  output logic [15:0]                 fetch_lines_o,
  input  logic                        fetch_ready_i,
  input  logic                        beat_valid_i,
  input  logic [LINE_BITS-1:0]        beat_data_i,
  input  logic                        beat_fault_i,
  output logic                        beat_ready_o,

  // The arena, or the output region.
  output logic                        store_valid_o,
  output logic                        store_output_o, // the output region: lines count from its first one
  output logic [MEMORY_BITS-1:0]      store_line_o,
  output logic [LINE_BITS-1:0]        store_data_o,
  output logic [63:0]                 store_strobe_o,
  input  logic                        store_ready_i,
  input  logic                        stored_i,
  input  logic                        store_fault_i,

  // The block table.
  output logic                        block_ask_o,
  output logic [10:0]                 block_entry_o,
  input  logic                        block_answer_i,
  input  logic [MEMORY_BITS-1:0]      block_line_i,
  input  logic [3:0]                  block_end_i
);
  localparam logic [2:0] Idle    = 3'd0;
  localparam logic [2:0] Prepare = 3'd1;   // what speaks against it; how far its row lies from the first one
  localparam logic [2:0] Address = 3'd2;
  localparam logic [2:0] Look    = 3'd3;   // for the position's block
  localparam logic [2:0] Move    = 3'd4;

  // Of what waits in the queue.
  localparam int Room = 4;
  localparam logic [1:0] Whole = 2'd0;     // a line
  localparam logic [1:0] Low   = 2'd1;     // its first 32 bytes
  localparam logic [1:0] High  = 2'd2;     // its last ones
  localparam logic [1:0] Scale = 2'd3;     // a number of 16 bits, the position's

  logic [2:0]              state_q;
  logic                    busy_q;         // the state is not Idle
  logic                    done_q;
  logic [3:0]              end_q;

  // ---------------------------------------------------------------- what the word is
  logic                    copies, embeds, appends, outputs;   // copies: with a line ahead, or from a row
  assign copies  = op_i.kind == OP_COPY || op_i.kind == OP_GAIN || op_i.kind == OP_ROW;
  assign embeds  = op_i.kind == OP_EMBED;
  assign appends = op_i.kind == OP_APPEND;
  assign outputs = op_i.kind == OP_OUT;

  logic [10:0]             row_lines;      // of a matrix
  logic [3:0]              pieces;         // of 32 channels, of a head
  logic [8:0]              half;           // lines of a head's keys, or values, in a block
  logic [20:0]             row;
  assign row_lines = {1'b0, op_i.columns[15:6]} + 11'(op_i.columns[5]);
  assign pieces    = op_i.width[8:5];
  assign half      = 9'd1 + 9'(op_i.width[8:1]);
  assign row       = embeds ? token_i[20:0] : position_i[20:0];

  // ---------------------------------------------------------------- from memory
  logic                    fetch_q;
  logic [MEMORY_BITS-1:0]  fetch_line_q;
  logic [15:0]             fetch_lines_q;
  logic                    behind_q;       // the row is to be asked for behind its scale
  logic [MEMORY_BITS-1:0]  product_q;
  logic                    beats_q;        // lines are to come, …
  logic [15:0]             beats_left_q;   // … so many, less one
  logic                    scaled_q;       // the row's scale is there
  logic [15:0]             scale_q;
  logic                    line_full_q, line_last_q;   // a line of weights, of which the next quarter is:
  logic [LINE_BITS-1:0]    line_q;
  logic [1:0]              quarter_q;
  logic                    products_full_q;
  logic [LINE_BITS-1:0]    products_q;     // 24 bits of each 32

  // ---------------------------------------------------------------- from on-chip memory
  logic                    walks_q;        // there is more to be read
  logic [15:0]             walk_left_q;    // OP_OUT: lines, less one
  logic [12:0]             head_q;         // OP_APPEND: of 2 · kv_heads, values behind keys
  logic                    head_scale_q;   // its scale is next
  logic [3:0]              piece_q;
  logic [CHIP_BITS+1:0]    from_piece_q;   // of the stored heads, from the first one's first
  logic [7:0]              to_first_q;     // where the position's begin behind the scales, in pieces
  logic [MEMORY_BITS-1:0]  first_q;        // where the layer begins in the position's block
  logic [MEMORY_BITS-1:0]  to_base_q;      // where keys or values of the head begin
  logic                    read_q;
  logic [CHIP_BITS-1:0]    read_line_q;
  // What becomes of the line that is asked for, and of the one that comes.
  logic [MEMORY_BITS-1:0]  ask_to_q, come_to_q;
  logic [1:0]              ask_what_q, come_what_q;
  logic [4:0]              ask_at_q, come_at_q;        // which scale of it, or in bit 0 which half

  // ---------------------------------------------------------------- the queue
  logic [LINE_BITS+MEMORY_BITS+1:0] queue_q [0:Room-1];
  logic [1:0]              queue_in_q, queue_out_q;
  logic [2:0]              queued_q;
  logic [2:0]              free_q;         // places of it for which nothing was read
  logic [MEMORY_BITS-1:0]  to_q;           // where the next beat goes
  logic                    write_q, store_q;
  logic [MEMORY_BITS-1:0]  out_line_q;
  logic [LINE_BITS-1:0]    out_data_q;
  logic [63:0]             out_strobe_q;
  logic [16:0]             owed_q;         // stores that are not answered

  assign idle_o         = !busy_q;
  assign done_o         = done_q;
  assign end_o          = end_q;
  assign read_valid_o   = read_q;
  assign read_line_o    = read_line_q;
  assign write_valid_o  = write_q;
  assign write_line_o   = out_line_q[CHIP_BITS-1:0];
  assign write_data_o   = out_data_q;
  assign fetch_valid_o  = fetch_q;
  assign fetch_line_o   = fetch_line_q;
  assign fetch_lines_o  = fetch_lines_q;
  assign beat_ready_o   = busy_q && beats_q && (embeds ? !scaled_q || !line_full_q || line_ends : queued_q != 3'(Room));
  assign store_valid_o  = store_q;
  assign store_output_o = outputs;
  assign store_line_o   = out_line_q;
  assign store_data_o   = out_data_q;
  assign store_strobe_o = out_strobe_q;
  assign block_ask_o    = state_q == Look;
  assign block_entry_o  = position_i[15:5];

  localparam logic signed [63:0] Bound = 64'(RESIDUAL);

  // One is shifted and one multiplied: both have a place.
  logic multiplies, line_ends;
  assign multiplies = line_full_q && queued_q < 3'(Room - 1);
  assign line_ends  = multiplies && quarter_q == ((line_last_q && op_i.columns[5]) ? 2'd1 : 2'd3);

  // [product >> shift], within the residual stream's bounds. A shift of 24 or more leaves nothing of 24 bits, one of 26 or
  // more to the left nothing within the bounds.
  function automatic logic signed [31:0] embedded(input logic signed [23:0] product, input logic left, input logic [4:0] by);
    logic signed [63:0] up;
    logic signed [23:0] down;
    logic               half_up;
    up       = {{40{product[23]}}, product};
    up       = up <<< by;
    half_up  = (by > 5'd24) ? product[23] : product[by - 5'd1];
    down     = product >>> by;
    down     = down + {23'd0, half_up};
    embedded = !left ? {{8{down[23]}}, down} : (up > Bound) ? Bound[31:0] : (up < -Bound) ? -Bound[31:0] : up[31:0];
  endfunction

  /* verilator lint_off BLKSEQ */  // names for what belongs to one cycle; registers are read before they are written
  logic [2:0]              state;
  logic                    fetch, beats, full, walks, reading, writing, storing, push, pop, given, stores;
  logic [LINE_BITS-1:0]    push_data;
  logic [MEMORY_BITS-1:0]  push_to, to;
  logic [1:0]              push_what;
  logic signed [8:0]       shift;
  logic [4:0]              by;
  logic                    left;
  logic [LINE_BITS+MEMORY_BITS+1:0] oldest;
  logic [16:0]             to_piece;       // from the first token's first one on
  logic [3:0]              next_piece;
  logic [CHIP_BITS-1:0]    scale_lines;

  always_ff @(posedge clk_i) begin
    if (done_q) done_q <= 1'b0;
    if (busy_q) begin
      state   = state_q;
      fetch   = fetch_q && !fetch_ready_i;
      beats   = beats_q;
      full    = line_full_q;
      walks   = walks_q;
      to      = to_q;
      reading = read_q && !read_ready_i;
      writing = write_q && !write_ready_i;
      storing = store_q && !store_ready_i;
      stores  = appends || outputs;
      push      = 1'b0;
      push_what = Whole;
      push_to   = to_q;
      if (state_q == Move && !fetch_q && !beats_q && !line_full_q && !products_full_q && !walks_q
          && queued_q == 3'd0 && !write_q && !store_q && free_q == 3'(Room) && owed_q == '0) begin
        state  = Idle;
        busy_q <= 1'b0;
        done_q <= 1'b1;
      end

      // What the queue gives.
      pop = queued_q != 3'd0 && !writing && !storing;
      if (pop) begin
        oldest      = queue_q[queue_out_q];
        queue_out_q <= queue_out_q + 2'd1;
        out_data_q  <= oldest[LINE_BITS-1:0];
        out_line_q  <= oldest[LINE_BITS +: MEMORY_BITS];
        writing     = !stores;
        storing     = stores;
        case (oldest[LINE_BITS+MEMORY_BITS +: 2])
          Whole:   out_strobe_q <= '1;
          Low:     out_strobe_q <= {32'd0, 32'hFFFF_FFFF};
          High:    out_strobe_q <= {32'hFFFF_FFFF, 32'd0};
          default: out_strobe_q <= 64'd3 << {position_i[4:0], 1'b0};
        endcase
      end
      owed_q <= owed_q + 17'(pop && stores) - 17'(stored_i);

      // What comes of on-chip memory, and is asked for.
      if (read_answer_i) begin
        push      = 1'b1;
        push_what = come_what_q;
        push_to   = come_to_q;
        push_data = (come_what_q == Whole) ? read_data_i
                  : (come_what_q == Scale) ? {32{read_data_i[{come_at_q, 4'd0} +: 16]}}
                  : come_at_q[0] ? {2{read_data_i[511:256]}} : {2{read_data_i[255:0]}};
      end
      if (read_q && read_ready_i) begin
        come_to_q   <= ask_to_q;
        come_what_q <= ask_what_q;
        come_at_q   <= ask_at_q;
      end
      given = walks_q && !reading && free_q != 3'd0;
      if (given) begin
        reading = 1'b1;
        if (outputs) begin
          read_line_q <= op_i.a + CHIP_BITS'(op_i.lines - 16'd1 - walk_left_q);
          ask_to_q    <= to_q;
          ask_what_q  <= Whole;
          to          = to_q + 1'b1;
          walk_left_q <= walk_left_q - 16'd1;
          if (walk_left_q == 16'd0) walks = 1'b0;
        end else if (head_scale_q) begin
          read_line_q  <= op_i.a + CHIP_BITS'(head_q[12:5]);
          ask_to_q     <= to_base_q;
          ask_what_q   <= Scale;
          ask_at_q     <= head_q[4:0];
          head_scale_q <= 1'b0;
          piece_q      <= '0;
        end else begin
          scale_lines  = CHIP_BITS'(op_i.kv_heads[12:4]) + CHIP_BITS'(op_i.kv_heads[3:0] != '0);
          to_piece     = 17'(to_first_q) + 17'(piece_q);
          next_piece   = piece_q + (pieces[0] ? 4'd1 : 4'd2);
          read_line_q  <= op_i.a + scale_lines + CHIP_BITS'(from_piece_q[CHIP_BITS+1:1]);
          ask_to_q     <= to_base_q + MEMORY_BITS'(to_piece[16:1]) + 1'b1;
          ask_what_q   <= !pieces[0] ? Whole : to_piece[0] ? High : Low;
          ask_at_q     <= {4'd0, from_piece_q[0]};
          from_piece_q <= from_piece_q + (pieces[0] ? (CHIP_BITS+2)'(1) : (CHIP_BITS+2)'(2));
          piece_q      <= next_piece;
          if (next_piece == pieces) begin
            // Values of the first head lie behind its keys.
            to_base_q    <= (head_q + 1'b1 == op_i.kv_heads) ? first_q + MEMORY_BITS'(half)
                                                             : to_base_q + MEMORY_BITS'(half) + MEMORY_BITS'(half);
            if ({1'b0, head_q} + 14'd1 == {op_i.kv_heads, 1'b0}) walks = 1'b0;
            head_q       <= head_q + 1'b1;
            head_scale_q <= 1'b1;
          end
        end
      end
      free_q <= free_q - 3'(given) + 3'(pop && stores);

      // What is made of weights.
      if (products_full_q) begin
        shift = -($signed({op_i.exponent[7], op_i.exponent}) + 9'sd10);
        left  = shift <= 9'sd0;
        shift = left ? -shift : shift;
        by    = (shift > 9'sd26) ? 5'd26 : shift[4:0];
        push  = 1'b1;
        for (int lane = 0; lane < 16; lane++)
          push_data[32*lane +: 32] = embedded(products_q[32*lane +: 24], left, by);
      end
      if (multiplies) begin
        for (int lane = 0; lane < 16; lane++)
          products_q[32*lane +: 32] <= {{24{line_q[128*quarter_q + 8*lane + 7]}}, line_q[128*quarter_q + 8*lane +: 8]} * {16'd0, scale_q};
        if (line_ends) full = 1'b0;
        quarter_q <= quarter_q + 2'd1;
      end
      products_full_q <= multiplies;

      // What comes of memory, and is asked for.
      if (beat_valid_i && beat_ready_o) begin
        if (beat_fault_i) end_q <= UNIT_MEMORY;
        if (embeds && !scaled_q) begin
          scaled_q <= 1'b1;
          scale_q  <= beat_data_i[{token_i[4:0], 4'd0} +: 16];
        end else begin
          if (embeds) begin
            full        = 1'b1;
            line_last_q <= beats_left_q == 16'd0;
            line_q      <= beat_data_i;
            quarter_q   <= 2'd0;
          end else begin
            push      = 1'b1;
            push_data = beat_data_i;
          end
          if (beats_left_q == 16'd0) beats = 1'b0;
          beats_left_q <= beats_left_q - 16'd1;
        end
      end
      if (fetch_q && fetch_ready_i && behind_q) begin
        fetch         = 1'b1;
        fetch_line_q  <= op_i.from + product_q;
        fetch_lines_q <= 16'(row_lines);
        behind_q      <= 1'b0;
      end

      case (state_q)
        Look: begin
          first_q   <= block_line_i + MEMORY_BITS'(op_i.layer);
          to_base_q <= block_line_i + MEMORY_BITS'(op_i.layer);
          if (block_answer_i) begin
            end_q <= block_end_i;
            walks = block_end_i == UNIT_FINE;
            state = Move;
          end
        end
        Address: begin
          fetch_line_q  <= embeds ? MEMORY_BITS'(op_i.scales) + MEMORY_BITS'(token_i[20:5]) : op_i.from + product_q;
          fetch_lines_q <= embeds ? 16'd1 : (op_i.kind == OP_GAIN) ? op_i.lines - 16'd1 : op_i.lines;
          beats_left_q  <= embeds ? 16'(row_lines) - 16'd1 : (op_i.kind == OP_GAIN) ? op_i.lines - 16'd2 : op_i.lines - 16'd1;
          walk_left_q   <= op_i.lines - 16'd1;
          behind_q      <= embeds;
          state         = Move;
          if (end_q == UNIT_FINE) begin
            fetch = copies || embeds;
            beats = copies || embeds;
            walks = outputs;
            if (appends) state = Look;
            if (op_i.kind == OP_GAIN) begin
              push      = 1'b1;
              push_data = LINE_BITS'({{8{op_i.exponent[7]}}, op_i.exponent});
            end
          end
        end
        Prepare: begin
          product_q  <= MEMORY_BITS'(row) * (embeds ? MEMORY_BITS'(row_lines) : op_i.kind == OP_ROW ? MEMORY_BITS'(op_i.stride) : '0);
          to_first_q <= 8'(position_i[4:0]) * 8'(pieces);
          to         = outputs ? op_i.from : MEMORY_BITS'(op_i.dst);
          state      = Address;
          if (op_i.kind == OP_ROW && position_i >= 32'(op_i.rows)) end_q <= UNIT_POSITION;
          if (embeds && token_i >= 32'(op_i.rows)) end_q <= UNIT_TOKEN;
          if (appends && position_i[31:16] != '0) end_q <= UNIT_MISSING;
          if (outputs && {1'b0, op_i.from} + 35'(op_i.lines) > 35'(output_lines_i)) end_q <= UNIT_OUTPUT;
        end
        default: ;
      endcase
      if (stored_i && store_fault_i) end_q <= UNIT_MEMORY;

      if (push) begin
        queue_q[queue_in_q] <= {push_what, push_to, push_data};
        queue_in_q          <= queue_in_q + 2'd1;
        if (!stores) to     = to_q + 1'b1;
      end
      queued_q    <= queued_q + 3'(push) - 3'(pop);
      to_q        <= to;
      read_q      <= reading;
      write_q     <= writing;
      store_q     <= storing;
      fetch_q     <= fetch;
      beats_q     <= beats;
      walks_q     <= walks;
      line_full_q <= full;
      state_q     <= state;
    end
    if (start_i) begin
      state_q      <= Prepare;
      busy_q       <= 1'b1;
      end_q        <= UNIT_FINE;
      behind_q     <= 1'b0;
      scaled_q     <= 1'b0;
      head_q       <= '0;
      head_scale_q <= 1'b1;
      from_piece_q <= '0;
      free_q       <= 3'(Room);
    end
    if (!rst_ni) begin
      state_q         <= Idle;
      busy_q          <= 1'b0;
      done_q          <= 1'b0;
      fetch_q         <= 1'b0;
      beats_q         <= 1'b0;
      walks_q         <= 1'b0;
      line_full_q     <= 1'b0;
      products_full_q <= 1'b0;
      queue_in_q      <= 2'd0;
      queue_out_q     <= 2'd0;
      queued_q        <= 3'd0;
      read_q          <= 1'b0;
      write_q         <= 1'b0;
      store_q         <= 1'b0;
      owed_q          <= '0;
    end
  end
  /* verilator lint_on BLKSEQ */

`ifndef SYNTHESIS
  always_ff @(posedge clk_i) begin
    if (rst_ni && (busy_q || start_i || stored_i || read_answer_i)) begin
      if (start_i && busy_q) $fatal(1, "N1 npu_mem: a word comes while one is in hand");
      if (start_i && !(op_i.kind == OP_COPY || op_i.kind == OP_GAIN || op_i.kind == OP_ROW || op_i.kind == OP_EMBED
                       || op_i.kind == OP_APPEND || op_i.kind == OP_OUT))
        $fatal(1, "N1 npu_mem: a word of another unit, kind %0d", op_i.kind);
      if (read_answer_i && !(appends || outputs)) $fatal(1, "N5 npu_mem: a line comes that was not asked for");
      if (stored_i && (!busy_q || owed_q == '0)) $fatal(1, "N5 npu_mem: an answer to a store that was not made");
      if (queued_q > 3'(Room) || free_q > 3'(Room)) $fatal(1, "N4 npu_mem: %0d lines in a queue of %0d", queued_q, Room);
    end
  end
`endif
endmodule
